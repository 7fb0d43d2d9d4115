"""Mistakes, one in each line with a mark: a type checker refuses each of them."""

import gradviz

gradviz.recrod("run.gradviz")  # refused: no such name
gradviz.record("run.gradviz", value="full")  # refused: no such setting
gradviz.record(7)  # refused: no path
gradviz.record("run.gradviz", passes=3)  # refused: several numbers
gradviz.open("run.gradviz", "w")  # refused: one argument
gradviz.open("run.gradviz").sql(1)  # refused: a text
gradviz.record("run.gradviz")(1)  # refused: no function
gradviz.check("run.gradviz", select=1)  # refused: no collection
gradviz.why("run.gradviz")  # refused: of which tensor
gradviz.draw("run.gradviz", pass_number=1)  # refused: no such setting
gradviz.draw("run.gradviz", show="sideways")  # refused: no such view
gradviz.draw("run.gradviz").write("a.svg")  # refused: no such method
gradviz.diff("run.gradviz", tolerance="small")  # refused: a number
count: str = len(gradviz.check("run.gradviz"))  # refused: a number
