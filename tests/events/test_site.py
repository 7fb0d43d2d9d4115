"""Where a value was made and what it is called, read off frames captured while real code runs."""

from __future__ import annotations

import ast
import linecache
import shlex
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradviz
from gradviz.events.site import Place, place_of

Moment = tuple[types.CodeType, int]


class Probe:
    """A value whose every operation takes note of the place it was called from."""

    def __init__(self) -> None:
        self.seen: list[Moment] = []

    def note(self, *_args, **_kwargs):
        frame = sys._getframe(1)
        self.seen.append((frame.f_code, frame.f_lasti))
        return self

    __mul__ = __rmul__ = __add__ = __pow__ = __matmul__ = __neg__ = __pos__ = __invert__ = note
    __getitem__ = __iadd__ = __lt__ = __call__ = __enter__ = method = note

    def __exit__(self, *_error):
        return None

    @property
    def T(self):
        frame = sys._getframe(1)
        self.seen.append((frame.f_code, frame.f_lasti))
        return self

    def pair(self, *_args):
        self.note_caller()
        return self, self

    def triple(self):
        self.note_caller()
        return self, self, self

    def yes(self):
        self.note_caller()
        return True

    def iterable(self):
        return Elements(self)

    def note_caller(self) -> None:
        frame = sys._getframe(2)
        self.seen.append((frame.f_code, frame.f_lasti))


class Elements:
    """An iterator in Python over two elements, each made in the frame that asks for it."""

    def __init__(self, probe: Probe) -> None:
        self.probe, self.left = probe, 2

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        self.probe.note_caller()
        return self.probe


class Box:
    """Something to hang names on."""


@pytest.fixture(autouse=True)
def _sources_forgotten_afterwards():
    yield
    linecache.clearcache()


def run(source: str, filename: str = "<lesson>") -> list[Place]:
    """Run `source` with a probe `x` in reach and return the places it was used at, in order."""
    source = textwrap.dedent(source).strip("\n") + "\n"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    probe = Probe()
    box, inner = Box(), Box()
    box.inner, box.h, box.d = inner, probe, {"k": probe, 0: probe}
    namespace = {"x": probe, "self": box, "d": {"k": probe}, "i": "k", "__name__": "lesson"}
    exec(compile(source, filename, "exec"), namespace)
    return [place_of(*moment) for moment in probe.seen]


def text_of(place: Place) -> str:
    """Return the source text that a place covers."""
    lines = [linecache.getline(place.file, n) for n in range(place.line, place.end_line + 1)]
    lines[-1] = lines[-1][: place.end_col]
    return "".join(lines)[place.col :]


def in_function(statement: str) -> str:
    return "def f(x, self, d, i):\n" + textwrap.indent(statement, "    ") + "\nf(x, self, d, i)"


ASSIGNMENTS = [
    ("y = x ** 3", ("y",)),
    ("y = x * 2", ("y",)),
    ("y = 2 * x", ("y",)),
    ("y = x @ x", ("y",)),
    ("y = -x", ("y",)),
    ("y = +x", ("y",)),
    ("y = ~x", ("y",)),
    ("y = x[0]", ("y",)),
    ("y = x[1:2]", ("y",)),
    ("y = x < 2", ("y",)),
    ("y = x.T", ("y",)),
    ("y = x()", ("y",)),
    ("y = x(1, k=2)", ("y",)),
    ("y = x(*[1], **{'k': 2})", ("y",)),
    ("y = x.method(1)", ("y",)),
    ("y = x.method(1, k=2)", ("y",)),
    ("y = x.method(*[1])", ("y",)),
    ("y: int = x(1)", ("y",)),
    ("y = z = x(1)", ("y",)),
    ("y = z = w = x(1)", ("y",)),
    ("(y := x(1))", ("y",)),
    ("z = [y := x(1)]", ("y",)),
    ("a, b = x.pair(1)", ("a", "b")),
    ("[a, b] = x.pair(1)", ("a", "b")),
    ("a, b, c = x.triple()", ("a", "b", "c")),
    ("_, _, c = x.triple()", ("_", "_", "c")),
    ("a, self.w = x.pair()", ("a", "self.w")),
    ("p = a, b = x.pair()", ("p",)),
    ("a, b = p = x.pair()", ("a", "b")),
    ("a, *b = x.pair(1)", ()),
    ("a, (b, c) = 1, x.pair()", ("b", "c")),
    ("a, b = x.iterable()", ("a", "b")),
    ("a, b = x(1), 2", ("a",)),
    ("a, b = 1, x(1)", ("b",)),
    ("a, b, c = 1, x(1), str(3)", ("b",)),
    ("a, b, c, e = 1, 2, x(1), str(*[3])", ("c",)),
    ("self.w = x(1)", ("self.w",)),
    ("self.inner.w = x(1)", ("self.inner.w",)),
    ("self.d['k'] = x(1)", ("self.d['k']",)),
    ("d['k'] = x(1)", ("d['k']",)),
    ("d[0] = x(1)", ("d[0]",)),
    ("d[0, 'a'] = x(1)", ("d[0, 'a']",)),
    ("d[i] = x(1)", ()),
    ("x += 1", ("x",)),
    ("self.h += 1", ("self.h",)),
    ("self.h += i", ("self.h",)),
    ("d['k'] += 1", ("d['k']",)),
    ("self.d['k'] += 1", ("self.d['k']",)),
    ("d[i] += 1", ()),
    ("with x as y: pass", ("y",)),
    ("for y in x.iterable(): break", ("y",)),
    ("y = x(1) if d else 0", ("y",)),
    ("y = 0 if not d else x(1)", ("y",)),
    ("y = not d or x(1)", ("y",)),
    ("y = 1 if x.yes() else 2", ()),
    ("y = str(x(1))", ()),
    ("y = [x(1)]", ()),
    ("y = x(1), 2", ()),
    ("y = f'{x(1)}'", ()),
    ("y = {'k': x(1)}", ()),
    ("x(1)", ()),
    ("assert x.yes()", ()),
    ("with x(1) as y: pass", ()),
]


@pytest.mark.parametrize("dress", [lambda source: source, in_function], ids=["module", "function"])
@pytest.mark.parametrize(("statement", "names"), ASSIGNMENTS, ids=[source for source, _ in ASSIGNMENTS])
def test_a_value_bears_the_names_it_is_assigned_to(statement, names, dress):
    assert run(dress(statement))[0].names == names


def test_only_the_outermost_of_nested_operations_is_named():
    inner, middle, outer = run("y = (x(1) * 2) + 3")
    assert (inner.names, middle.names, outer.names) == ((), (), ("y",))


def test_a_captured_variable_is_named():
    (place,) = run(
        """
        def f():
            y = None
            def g():
                nonlocal y
                y = x(1)
            g()
        f()
        """
    )
    assert place.names == ("y",)
    assert place.function == "f.<locals>.g"


def test_an_attribute_of_a_captured_object_is_named():
    (place,) = run("def f(me):\n  def g():\n    me.w = x(1)\n  g()\nf(self)")
    assert place.names == ("me.w",)


def test_a_declared_global_is_named():
    assert run("def f():\n  global y\n  y = x(1)\nf()")[0].names == ("y",)


def test_a_name_in_a_class_body_is_named():
    (place,) = run("class C:\n  y = x(1)")
    assert (place.names, place.function) == (("y",), "C")


def test_a_decorated_function_names_what_its_decorator_returns():
    (place,) = run("@x.method\ndef f(): pass")
    assert place.names == ("f",)
    assert text_of(place) == "x.method"


def test_an_augmented_target_is_not_mistaken_for_an_earlier_one():
    places = run("self.h += 1; d['k'] += 1; self.inner.v = x; self.inner.v += x(1) if d else 2; x += 1")
    assert [place.names for place in places] == [("self.h",), ("d['k']",), (), ("self.inner.v",), ("x",)]


def test_the_value_of_an_element_of_a_comprehension_has_no_name():
    for source in ("y = [x(i) for i in 'a']", "y = list(x(i) for i in 'a')", "y = {i: x(i) for i in 'a'}"):
        (place,) = run(source)
        assert (place.names, place.returns) == ((), False)
        assert text_of(place) == "x(i)"


RETURNS = [
    ("def f(): return x * 2\nf()", True),
    ("def f(): return 2 * (x * 2)\nf()", False),
    ("def f(): return x(1), 2\nf()", False),
    ("def f():\n  y = x * 2\n  return y\nf()", False),
    ("def f(): return (y := x * 2)\nf()", True),
    ("def f(): return x * 2 if d else 0\nf()", True),
    ("def f(): return not d or x * 2\nf()", True),
    ("def f():\n  for _ in 'ab':\n    return x * 2\nf()", True),
    ("def f():\n  with open(__import__('os').devnull):\n    return x * 2\nf()", True),
    ("def f():\n  try:\n    return x * 2\n  finally:\n    d['z'] = 1\nf()", True),
    ("def f():\n  try: d['none']\n  except KeyError as e:\n    return x * 2\nf()", True),
    ("f = lambda: x * 2\nf()", True),
    ("f = lambda: [x * 2]\nf()", False),
    ("def f(): yield x * 2\nlist(f())", False),
    ("def f(): x * 2\nf()", False),
]


@pytest.mark.parametrize(("source", "returns"), RETURNS, ids=[source for source, _ in RETURNS])
def test_a_value_handed_straight_to_the_caller_is_known_to_be(source, returns):
    assert run(source)[0].returns is returns


def test_a_walrus_that_is_returned_is_both_named_and_returned():
    (place,) = run("def f(): return (y := x * 2)\nf()")
    assert (place.names, place.returns) == (("y",), True)


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("y = x ** 3 + 1", ["x ** 3", "x ** 3 + 1"]),
        ("y = -x[0]", ["x[0]", "-x[0]"]),
        ("y = x.T @ x", ["x.T", "x.T @ x"]),
        ("y = str(x(1, k=2))", ["x(1, k=2)"]),
        ("y = x.method(1).method(2)", ["x.method(1)", "x.method(1).method(2)"]),
        ("x += 1", ["x += 1"]),
        ("f = lambda: x * 2; f()", ["x * 2"]),
        ("y = (x *\n     2)", ["x *\n     2"]),
        ("y = x(\n  1,\n  2,\n)", ["x(\n  1,\n  2,\n)"]),
    ],
)
def test_a_place_covers_exactly_its_expression(source, texts):
    assert [text_of(place) for place in run(source)] == texts


def test_columns_count_characters_where_the_text_is_not_ascii():
    (place,) = run("가중치 = 2; ŷ = x * 가중치")
    assert (place.col, place.end_col) == (13, 20)
    assert text_of(place) == "x * 가중치"
    assert place.names == ("ŷ",)


def test_columns_count_characters_on_the_last_line_of_an_expression_too():
    (place,) = run("y = (x *\n '가나'); z = 1")
    assert (place.line, place.col, place.end_line, place.end_col) == (1, 5, 2, 5)


def test_columns_are_as_compiled_where_the_source_is_not_at_hand():
    run("y = x * 2", filename="<gone>")
    probe = Probe()
    linecache.cache.pop("<gone>")
    exec(compile("ŷ = x * 2", "<gone>", "exec"), {"x": probe})
    (place,) = [place_of(*moment) for moment in probe.seen]
    assert (place.line, place.col, place.end_col) == (1, 5, 10)


def test_a_place_knows_its_file_and_function():
    (place,) = run("class C:\n  def f(self):\n    return x * 2\nC().f()", filename="lesson.py")
    assert (place.file, place.line, place.function) == ("lesson.py", 3, "C.f")
    assert run("x * 2")[0].function == "<module>"


def test_equal_code_in_two_files_keeps_its_own_file():
    assert [run("y = x * 2", filename=name)[0].file for name in ("one.py", "two.py")] == ["one.py", "two.py"]


@pytest.mark.parametrize("dress", [lambda source: source, in_function], ids=["module", "function"])
def test_a_program_with_more_names_than_an_instruction_has_room_for_is_read(dress):
    filler = "\n".join(f"n{i} = {i}000" for i in range(400))
    (place,) = run(dress(f"{filler}\nlast = x.method(n300, n301, k=n302)\nn5 = last"))
    assert place.names == ("last",)
    assert text_of(place) == "x.method(n300, n301, k=n302)"


def test_a_jump_over_a_long_branch_is_followed():
    other = " + ".join(f"n{i}" for i in range(400))
    (place,) = run(f"for q in 'a':\n  y = x(1) if d else ({other})\n  z = 1")
    assert place.names == ("y",)


def test_code_that_has_grown_warm_reads_alike():
    places = run("def f():\n  y = x.method(1)\n  return y * 2\nfor _ in range(100): z = f()")
    assert {place.names for place in places[::2]} == {("y",)}
    assert {place.returns for place in places[1::2]} == {True}


def test_code_under_a_debugger_reads_alike():
    def trace(_frame, _event, _arg):
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        places = run("def f():\n  y = x.method(1)\n  return y * 2\nz = f()")
    finally:
        sys.settrace(before)
    assert [(place.names, place.returns) for place in places] == [(("y",), False), ((), True)]


def places_up_the_stack(source: str) -> list[Place]:
    """Run `source`, which calls `stack()`, and return the places of all its frames, innermost first."""
    moments: list[Moment] = []

    def stack(*_args):
        moments.clear()
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == "<calls>":
            moments.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back

    exec(compile(textwrap.dedent(source), "<calls>", "exec"), {"stack": stack})
    return [place_of(*moment) for moment in moments]


@pytest.mark.parametrize("times", [1, 100], ids=["cold", "warm"])
def test_a_returned_value_finds_its_name_in_the_frame_of_the_caller(times):
    places = places_up_the_stack(
        f"""
        class Model:
            def forward(self, x):
                return stack(x)
            def __call__(self, x, *, scale=1):
                return self.forward(x)
        def layer(model, x):
            return model(x, scale=2)
        for _ in range({times}):
            y = layer(Model(), 1)
        """
    )
    assert [(place.function, place.names, place.returns) for place in places] == [
        ("Model.forward", (), True),
        ("Model.__call__", (), True),
        ("layer", (), True),
        ("<module>", ("y",), False),
    ]


def test_a_frame_that_has_not_started_is_at_the_head_of_its_code():
    code = compile("\n\ny = 1", "<new>", "exec")
    assert place_of(code, -1) == Place("<new>", 1, -1, 1, -1, "<module>", (), False)
    assert place_of(code, 10_000).names == ()


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes_in(const)


@pytest.mark.parametrize("module", [textwrap, shlex], ids=lambda module: module.__name__)
def test_a_whole_library_reads_as_its_syntax_tree_does(module):
    source = Path(module.__file__).read_text(encoding="utf-8")
    expected = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign | ast.Return) and isinstance(node.value, ast.Call | ast.BinOp):
            value = node.value
            span = (value.lineno, value.col_offset, value.end_lineno, value.end_col_offset)
            targets = node.targets[:1] if isinstance(node, ast.Assign) else []
            names = tuple(ast.unparse(name) for target in targets for name in getattr(target, "elts", [target]))
            expected[span] = (names, isinstance(node, ast.Return))
    found = {}
    for code in codes_in(compile(source, "<library>", "exec")):
        for lasti in range(0, len(code.co_code), 2):
            place = place_of(code, lasti)
            if place.names or place.returns:
                span = (place.line, place.col, place.end_line, place.end_col)
                found[span] = (place.names, place.returns)
    assert len(expected) > 20
    assert {span: found.get(span) for span in expected} == expected


def test_columns_are_unknown_where_python_keeps_no_record_of_them():
    program = (
        "import sys; from gradviz.events.site import place_of\n"
        "def here(): f = sys._getframe(1); return f.f_code, f.f_lasti\n"
        "y = here()\n"
        "print(place_of(*y))"
    )
    ran = subprocess.run(
        [sys.executable, "-X", "no_debug_ranges", "-c", program],
        cwd=Path(gradviz.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = Place("<string>", 3, -1, 3, -1, "<module>", ("y",), False)
    assert ran.stdout.strip() == repr(expected)


CELL = """\
w = x(1)
y = (w * w).T
def f(a):
    b = a * 2
    return b + a
z = f(x)
"""


@pytest.mark.parametrize("indentation", ["", "    ", "        "])
def test_a_cell_compiled_without_its_indentation_reads_as_it_stands_in_the_file(indentation: str) -> None:
    file = "".join(["def cell():\n", *(indentation + line for line in CELL.splitlines(True))])
    linecache.cache["cells.py"] = (len(file), None, file.splitlines(True), "cells.py")
    probe = Probe()
    exec(compile(ast.increment_lineno(ast.parse(CELL), 1), "cells.py", "exec"), {"x": probe})
    read = [text_of(place_of(*moment)) for moment in probe.seen]
    assert read == ["x(1)", "w * w", "(w * w).T", "a * 2", "b + a"]


def test_a_file_that_is_not_what_was_compiled_shifts_nothing() -> None:
    file = "    other = names\n"
    linecache.cache["edited.py"] = (len(file), None, [file], "edited.py")
    code = compile("y = x * 2", "edited.py", "exec")
    exec(code, {"x": (probe := Probe())})
    (place,) = (place_of(*moment) for moment in probe.seen)
    assert (place.col, place.end_col) == (4, 9)
