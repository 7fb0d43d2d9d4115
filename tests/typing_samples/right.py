"""All of the public API as the README and the docs use it: a type checker has nothing to say."""

from pathlib import Path

import torch

import gradviz

with gradviz.record("run.gradviz", values="full", passes=range(1, 4), last=10, source=False):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    loss = (x * x).sum()
    loss.backward()

with gradviz.open(Path("run.gradviz")) as trace:
    events: int = trace.count
    numbers: list[int] = [run.number for run in trace.passes]

    norms = trace.sql("SELECT name, norm FROM gradients")
    columns: tuple[str, ...] = norms.columns
    frame = trace.to_pandas("passes")


@gradviz.record("train.gradviz", every=50)
def train(steps: int) -> float:
    return 0.1 * steps


trained: float = train(3)

report = gradviz.check("run.gradviz", select=["dead-relu"])
for finding in report:
    text: str = f"{finding.file}:{finding.line}: {finding.rule}: {finding.message}; {finding.fix}"

reason = gradviz.why("run.gradviz", "x")
tensor: int = reason.tensor
difference = gradviz.diff("run.gradviz", "other.gradviz", tolerance=1e-6)
equal: bool = difference.same

picture = gradviz.draw(loss, params={"x": x}, depth=1, theme="dark", show="backward")
picture.save("loss.svg")
svg: str = picture.svg
gradviz.draw("run.gradviz", passes=1, rolled=True).save(Path("run.png"))
page: str = gradviz.show("run.gradviz", passes=2)
version: str = gradviz.__version__
