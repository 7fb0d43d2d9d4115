"""`gradviz redact`: what a copy that is to be shared does not hold, and that every view reads it.

A program has a secret in every place that a trace is made of. None is in the copy: not in its bytes, not in what its
arrays stand for, not in what any command shows of it."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

import gradviz
import gradviz.engine as torch
from gradviz.events.handles import Form
from gradviz.events.kinds import Kind
from gradviz.events.values import Stats, unpack_stats
from gradviz.tracefile import Trace, open_trace, part_of
from gradviz.tracefile.database import ELEMENTS, STATE, STATS
from gradviz.tracefile.redaction import redact, reduce_values
from tests.conftest import terminal_env
from tests.invoked import invoked
from tests.warm import python

Run = Callable[..., CompletedProcess[str]]

# Where each secret is in the program: what may not be in the copy.
TEXTS = {
    "comment": "quetzalcoatl",
    "string": "huitzilopochtli",
    "folder above": "tezcatlipoca",
    "exception": "mictlantecuhtli",
    "string argument": "qx,xv->qv",
    "key of a dict": "coyolxauhqui",
    "option of a group": "xochiquetzal",
    "value of an option": "tonacatecuhtli",
    "argument of the script": "chalchiuhtlicue",
    "environment": "centeotl",
    "exit": "xipetotec",
    "warning": "cihuacoatl",
}
NUMBERS = {
    "first of few": 73519.25, "last of few": 41827.5, "first of many": 64817.5, "inside of many": 38261.75,
    "last of many": 52943.25, "number argument": 91357.5, "seed": 86429731,
}  # fmt: skip
HELPER = f"""
import torch
def scaled(x):
    return x * {NUMBERS["number argument"]}
"""
PROGRAM = f"""
import os, signal, sys, time, warnings
import torch  # {TEXTS["comment"]}
from helper import scaled
nothing = "{TEXTS["string"]}"
torch.manual_seed({NUMBERS["seed"]})
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(5, 7)
    def forward(self, x):
        return self.inner(x).relu()
params = {{}}
few = [{NUMBERS["first of few"]}, {NUMBERS["last of few"]}]
params["{TEXTS["key of a dict"]}"] = torch.tensor(few, requires_grad=True)
many = [{NUMBERS["first of many"]}] + [-1e6, 1e6] * 9 + [{NUMBERS["inside of many"]}] + [0.0] * 9
many = torch.tensor(many + [{NUMBERS["last of many"]}], requires_grad=True)
net = Net()
optimizer = torch.optim.SGD([
    {{"params": net.parameters(), "{TEXTS["option of a group"]}": "{TEXTS["value of an option"]}"}}
], lr=0.125)
many.register_hook(lambda grad: grad * 2)
for step in range(3):
    optimizer.zero_grad()
    product = torch.einsum("{TEXTS["string argument"]}", net(torch.randn(3, 5)), torch.randn(7, 2))
    loss = product.pow(2).mean() + scaled(params["{TEXTS["key of a dict"]}"]).sum() + many.mean()
    loss.backward()
    optimizer.step()
warnings.warn("{TEXTS["warning"]}")
"""
ENDINGS = {
    "end": "",
    "exception": f"raise ValueError('{TEXTS['exception']}')",
    "error in backward": f"loss.register_hook(lambda grad: 1 / 0 or '{TEXTS['exception']}'); (loss * 2).backward()",
    "exit": f"sys.exit('{TEXTS['exit']}')",
    # For a second, so that some are written.
    "kill": "for _ in range(100): net(torch.randn(3, 5)).sum().backward(); time.sleep(0.01)\n"
    + ("os.kill(os.getpid(), signal.SIGKILL)" if sys.platform != "win32" else "os._exit(1)"),
}
RUNS = {
    "plain": ("end", []),
    "exception": ("exception", []),
    "error in backward": ("error in backward", ["--values", "full"]),
    "exit": ("exit", []),
    "full": ("end", ["--values", "full"]),
    "none": ("end", ["--values", "none"]),
    "last": ("exception", ["--last", "2", "--values", "full"]),
    "passes": ("end", ["--passes", "2"]),
    "killed": ("kill", []),
}
MOST = 600  # events that are stepped through: all of a run that is not killed
ON_TORCH = ("exception", "error in backward", "passes", "killed")
QUICK = ("exception",)  # every command looks at every event: some 10 s each
ENGINES = [
    pytest.param("numpy"),
    pytest.param(
        "torch",
        marks=[pytest.mark.torch, pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")],
    ),
]


def redacted(folder: Path, engine: str, ending: str, options: list[str]) -> Path:
    """The copy of a trace of the program with secrets, in a folder without any."""
    above = folder / TEXTS["folder above"]
    here, clean = above / "work", folder / "clean"
    here.mkdir(parents=True)
    clean.mkdir()
    (above / "helper.py").write_text(HELPER)
    (here / "run.py").write_text(PROGRAM + ENDINGS[ending])
    env = {**terminal_env(), "PYTHONPATH": str(above), "SECRET": TEXTS["environment"], "GRADVIZ_DEBUG": "1"}
    script = [str(here / "run.py"), "--password", TEXTS["argument of the script"]]
    aten = ["--aten"] if engine == "torch" else []
    command = [python(torch=engine == "torch"), "-m", "gradviz", "trace", "--engine", engine, *options, *aten, *script]
    subprocess.run(command, cwd=here, env=env, capture_output=True, timeout=120, check=False)
    done = invoked(["redact", str(here / "run.gradviz"), "-o", str(clean / "shared.gradviz")])
    assert (done.exit_code, done.stderr) == (0, "")
    return clean / "shared.gradviz"


def forms_of(secrets: dict[str, float]) -> list[bytes]:
    """Numbers as a file may hold them: as text, and packed."""
    texts = [str(int(number)).encode() for number in secrets.values()]
    packed = [struct.pack(form, number) for number in secrets.values() for form in ("<f", "<d")]
    return [*texts, *packed]


def secrets_in(data: bytes) -> list[bytes]:
    """The secrets in some bytes. A number as text stands alone: the digits of a longer one are no secret."""
    return [
        s
        for s in [*(t.encode() for t in TEXTS.values()), *forms_of(NUMBERS)]
        if s in data and not (s.isdigit() and re.search(rb"(?<![\w.])" + s + rb"(?!\w)", data) is None)
    ]


def arrays_of(trace: Trace) -> bytes:
    """All arrays of a trace, as they were before they were packed."""
    tables = ("events", "links", "states")
    numbers = [part.tobytes() for table in tables for part in trace.chunks.each(table)]
    return b"".join([*numbers, *(trace.chunks.values(place) for place in range(len(trace.chunks)))])


def shown(path: Path, count: int) -> bytes:
    """What commands print and write of a trace of so many events."""
    stepping = "; ".join(["why; info; where; next"] * min(count, MOST))
    commands = [
        ["info"], ["info", "--json"], ["check"], ["check", "--format", "json"], ["check", "--format", "sarif"],
        ["step", "--commands", stepping], ["report", "-o", "report.html"],
        *(["graph", "-o", f"net.{ending}"] for ending in ("json", "svg", "html", "dot", "mmd")),
    ]  # fmt: skip
    found = b""
    for command, *options in commands:
        done = invoked([command, path.name, *options])
        assert (done.exit_code, done.stderr) in ((0, ""), (1, "")), (command, options)
        found += done.output.encode()
    return found + b"".join(file.read_bytes() for file in Path().iterdir() if file != Path(path.name))


# What is redacted depends on the kinds of events: those that PyTorch alone has are in the runs of `ON_TORCH`.
@pytest.mark.parametrize(
    ("case", "engine"),
    [
        pytest.param(case, *engine.values, marks=[*engine.marks, *([] if case in QUICK else [pytest.mark.slow])])
        for case in RUNS
        for engine in ENGINES
        if engine.values == ("numpy",) or case in ON_TORCH
    ],
)
def test_no_secret_is_in_the_copy(case: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = redacted(tmp_path, engine, *RUNS[case])
    monkeypatch.chdir(path.parent)
    assert secrets_in(path.read_bytes()) == []
    with open_trace(path) as trace:
        assert trace.count > 20
        assert secrets_in(arrays_of(trace)) == []
        count = trace.count
    assert (count > MOST) == (case == "killed")
    assert secrets_in(shown(path, count)) == []
    assert [file.name for file in path.parent.iterdir() if "journal" in file.name or "wal" in file.name] == []


@pytest.mark.slow
def test_the_secrets_are_in_the_trace(tmp_path: Path) -> None:
    path = redacted(tmp_path, "numpy", "exception", ["--values", "full"])
    original = tmp_path / TEXTS["folder above"] / "work" / "run.gradviz"
    with open_trace(original) as trace:
        found = secrets_in(original.read_bytes() + arrays_of(trace))
    assert {TEXTS[place].encode() for place in ("comment", "folder above", "exception", "key of a dict")} <= {*found}
    assert path.stat().st_size < original.stat().st_size


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace with values of several sizes, an error and a name by a quoted key."""
    with gradviz.record(tmp_path / "run.gradviz"):
        w = {}
        w["a b"] = torch.tensor([1.0, 2.0], requires_grad=True)
        large = torch.linspace(-3.0, 5.0, 40).requires_grad_()
        y = torch.log((w["a b"].sum() * large).abs())
        y.sum().backward()
    return tmp_path / "run.gradviz"


def of_shape(trace: Trace, shape: tuple[int, ...]) -> int:
    """The first leaf of a shape."""
    made = trace.table(Kind.TENSOR)["tensor"].tolist()
    return next(tensor for tensor in made if (trace.shape(tensor) or ((),))[0] == shape)


def copied(path: Path) -> Path:
    to = path.with_name("shared.gradviz")
    with open_trace(path) as opened:
        redact(opened, to)
    return to


def test_the_copy_tells_the_same_events(trace: Path) -> None:
    with open_trace(trace) as one, open_trace(copied(trace)) as other:
        assert one.kinds.tolist() == other.kinds.tolist()
        for index in range(one.count):
            left, right = one.event(index), other.event(index)
            assert {n for n, v in left._fields().items() if getattr(right, n) != v} <= {"name", "rule"}


def test_statistics_of_large_tensors_stay(trace: Path) -> None:
    with open_trace(copied(trace)) as found:
        snapshot = found.snapshot(of_shape(found, (40,)))
    assert snapshot is not None
    assert snapshot.array is None
    assert snapshot.told is not None
    assert (snapshot.told.min, snapshot.told.max) == (-3.0, 5.0)


def test_of_small_tensors_no_value_stays(trace: Path) -> None:
    with open_trace(copied(trace)) as found:
        snapshot = found.snapshot(of_shape(found, (2,)))
    assert snapshot is not None
    assert (snapshot.array, snapshot.told) == (None, None)


def test_only_its_owner_reads_the_copy(trace: Path) -> None:
    if os.name == "posix":
        assert stat.S_IMODE(copied(trace).stat().st_mode) == 0o600


def test_a_copy_of_a_copy_is_the_same(trace: Path) -> None:
    once = copied(trace)
    twice = copied(once.rename(once.with_name("once.gradviz")))
    dumps = [dumped(path) for path in (once.with_name("once.gradviz"), twice)]
    assert dumps[0] == dumps[1]


def dumped(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def test_the_file_has_no_free_pages(trace: Path) -> None:
    with closing(sqlite3.connect(copied(trace))) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)


def test_a_long_run_is_read_in_parts(trace: Path) -> None:
    with open_trace(copied(trace)) as found:
        part = part_of(found)
        assert part is not found
        assert (part.ops_told, part.nodes_told) == (found.ops_told, found.nodes_told)
        assert part.site_ops.pairs.tolist() == found.site_ops.pairs.tolist()


def test_a_wrong_custom_gradient_is_found_without_its_numbers(tmp_path: Path) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
            return x * x

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
            return grad

    with gradviz.record(tmp_path / "run.gradviz", check_functions=True):
        Square.apply(torch.tensor([3.0, 4.0], requires_grad=True)).sum().backward()
    (finding,) = gradviz.check(copied(tmp_path / "run.gradviz"), select=["wrong-custom-gradient"]).findings
    assert finding.message == "the backward of Square is not the derivative of its forward for x"


class TestWhatIsRefused:
    """One line on stderr, exit status 2, and no file is harmed."""

    def refused(self, *arguments: Path | str) -> str:
        done = invoked(["redact", *map(str, arguments)])
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        return done.stderr

    def test_the_trace_itself(self, trace: Path) -> None:
        before = trace.read_bytes()
        assert "choose another name" in self.refused(trace, "-o", trace)
        assert trace.read_bytes() == before

    def test_a_link_to_the_trace(self, trace: Path) -> None:
        link = trace.with_name("link.gradviz")
        os.link(trace, link)
        assert "is the trace itself" in self.refused(trace, "-o", link)

    def test_a_file_that_is_no_trace(self, trace: Path, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        assert "is not overwritten" in self.refused(trace, "-o", tmp_path / "notes.txt")
        assert (tmp_path / "notes.txt").read_text() == "mine"

    def test_what_is_no_trace(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        assert "not a gradviz trace" in self.refused(tmp_path / "notes.txt", "-o", tmp_path / "o.gradviz")
        assert "no such file" in self.refused(tmp_path / "none.gradviz", "-o", tmp_path / "o.gradviz")

    def test_a_folder_that_there_is_not(self, trace: Path, tmp_path: Path) -> None:
        assert "cannot write" in self.refused(trace, "-o", tmp_path / "none" / "o.gradviz")

    def test_a_damaged_trace_leaves_no_copy(self, trace: Path, tmp_path: Path) -> None:
        with closing(sqlite3.connect(trace)) as connection, connection:
            connection.execute("UPDATE links SET data = substr(data, 1, 24)")
        assert "damaged" in self.refused(trace, "-o", tmp_path / "o.gradviz")
        assert not (tmp_path / "o.gradviz").exists()

    def test_a_run_that_goes_on(self, tmp_path: Path) -> None:
        with gradviz.record(tmp_path / "run.gradviz") as recording:
            torch.ones(2, requires_grad=True).sum().backward()
            assert recording.recorder is not None
            recording.recorder.flush()
            said = self.refused(tmp_path / "run.gradviz", "-o", tmp_path / "o.gradviz")
        assert "is being recorded" in said


class TestValues:
    """What stays of the value of one state."""

    @pytest.fixture
    def states(self) -> np.ndarray:
        return np.zeros(1, STATE)

    def left(self, states: np.ndarray, value: bytes, shape: tuple[int, ...], dtype: str, grade: int) -> list[Stats]:
        states["form"], states["what"], states["length"] = 1, 3 | grade << 8, len(value)
        kept = reduce_values(states, value, {1: Form(shape, dtype, "cpu")})
        assert int(states["what"][0]) == 3 | (STATS << 8 if kept else 0)
        assert int(states["length"][0]) == sum(map(len, kept))
        return [unpack_stats(data) for data in kept]

    def test_elements_of_many(self, states: np.ndarray) -> None:
        array = np.arange(17, dtype=np.float32)
        (found,) = self.left(states, array.tobytes(), (17,), "float32", ELEMENTS)
        assert (found.min, found.max, found.mean, found.zeros) == (0.0, 16.0, 8.0, 1)

    def test_elements_of_few(self, states: np.ndarray) -> None:
        assert self.left(states, np.ones(16).tobytes(), (4, 4), "float64", ELEMENTS) == []

    def test_few_of_which_none_is_finite(self, states: np.ndarray) -> None:
        array = np.array([np.nan, np.inf], np.float32)
        (found,) = self.left(states, array.tobytes(), (2,), "float32", ELEMENTS)
        assert (found.nan, found.inf, np.isnan(found.min)) == (1, 1, True)

    def test_few_whole_numbers(self, states: np.ndarray) -> None:
        assert self.left(states, np.arange(3).tobytes(), (3,), "int64", ELEMENTS) == []

    def test_no_elements(self, states: np.ndarray) -> None:
        assert self.left(states, b"", (0, 3), "float32", ELEMENTS) == []

    def test_a_dtype_that_numpy_has_not(self, states: np.ndarray) -> None:
        assert self.left(states, bytes(40), (40,), "float8_e4m3fn", ELEMENTS) == []

    def test_bfloat16(self, states: np.ndarray) -> None:
        halves = (np.arange(20, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
        (found,) = self.left(states, halves.tobytes(), (20,), "bfloat16", ELEMENTS)
        assert (found.min, found.max) == (0.0, 19.0)

    def test_statistics_of_few(self, states: np.ndarray) -> None:
        packed = np.array([1.0, 1.0, 1.0, 1.0, 0, 0, 0]).tobytes()
        assert self.left(states, packed, (16,), "float32", STATS) == []

    def test_statistics_of_many(self, states: np.ndarray) -> None:
        kept = Stats(-1.0, 2.0, 0.5, 1.0, 0, 0, 4)
        assert self.left(states, np.array(tuple(kept)).tobytes(), (17,), "float32", STATS) == [kept]


@pytest.mark.torch
def test_the_numbers_of_passes_that_were_left_out_are_unknown_afterwards(tmp_path: Path) -> None:
    """NaN in their place would be a finding."""
    torch = pytest.importorskip("torch")
    with gradviz.record(tmp_path / "run.gradviz", passes="auto"):
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(40):
            loss = model(torch.ones(8, 3)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert (trace.table(Kind.SUMMED)["loss"] > 0).any()
        redact(trace, tmp_path / "shared.gradviz")
    with open_trace(tmp_path / "shared.gradviz") as trace:
        summed = trace.table(Kind.SUMMED)
        assert not summed["has_loss"].any()
        assert set(summed["loss"].tolist()) == {0.0}
        assert {*summed["norm"].tolist(), *summed["largest"].tolist()} == {-1.0}
    assert gradviz.check(tmp_path / "shared.gradviz").findings == ()
