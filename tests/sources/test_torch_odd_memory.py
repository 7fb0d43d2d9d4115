"""Tensors whose memory is not what their shape says, and tensors of every make: a program with one runs under `trace`
as it does without, and the trace opens. Each runs in a fork of its own, since a wrong address ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402

pytestmark = pytest.mark.torch

# What makes `t`, and what the program does with it, which must not end it without a recorder either.
ODD = {
    "resized storage": "t = torch.randn(50_000); t.untyped_storage().resize_(64); u = t.view(100, 500)",
    "huge and resized": "t = torch.randn(50_000_000); t.untyped_storage().resize_(64); u = t.view(1000, 50000)",
    "resized view": "t = torch.randn(90_000); u = t[80_000:]; t.untyped_storage().resize_(4096); u = u.view(100, 100)",
    "freed as FSDP does": "t = torch.randn(50_000); t.untyped_storage().resize_(0); u = t.view(-1)",
    "freed and few": "t = torch.randn(5); t.untyped_storage().resize_(0); u = t.view(-1)",
    "freed and filled again": """
t = torch.randn(50_000); s = t.untyped_storage(); s.resize_(0); u = t.view(-1); s.resize_(200_000)
t.fill_(2.0); print(t.sum())""",
    "as_strided": "t = torch.arange(1e5); u = t.as_strided((300, 300), (1, 3), 7); print(u.sum())",
    "as_strided, then beyond": """
t = torch.arange(1e5); u = t.as_strided((300, 300), (300, 1), 7); t.untyped_storage().resize_(800)
u = u.detach()""",
    "a column, then beyond": "t = torch.ones(9000, 9); u = t[:, 8]; t.untyped_storage().resize_(8); u = u.detach()",
    "set_ to less": "t = torch.empty(0).set_(torch.randn(10)[:5]); print((t * 2).shape)",
    "resize_": "t = torch.ones(3); t.resize_(2); u = t + 1; print(u); t.resize_(10_000); u = t.view(100, 100)",
    "expanded": "t = torch.ones(1, 3).expand(5000, 3); u = t * 2; print(u.sum())",
    "expanded, then beyond": """
t = torch.ones(100); u = t.expand(500, 100); t.untyped_storage().resize_(4); u = u.detach()""",
    "expanded of nothing": "t = torch.empty(0, 1).expand(0, 50); u = t * 2; print(u.shape)",
    "overlapping": "t = torch.arange(100.0).as_strided((90, 10), (1, 1)); u = t * 2; print(u.sum())",
    "empty": "t = torch.empty(0, 5); u = t * 2; print(u.sum())",
    "zero-dimensional": "t = torch.tensor(3.0, requires_grad=True); u = t * 2; u.backward(); print(t.grad)",
    "shared memory": "t = torch.randn(10_000).share_memory_(); u = t * 0; print(u.sum())",
    "a mapped file": """
t = torch.from_file("map", shared=True, size=10_000); t.fill_(2.0); u = t * 2; print(u.sum())""",
    "a mapped array": """
import numpy
a = numpy.memmap("map", numpy.float32, "w+", shape=(100, 100)); t = torch.from_numpy(a); u = t + 1; print(u.sum())""",
    "a strided array": """
import numpy
a = numpy.lib.stride_tricks.as_strided(numpy.arange(9.0), (3, 3), (8, 8)); t = torch.from_numpy(a); print(t * 2)""",
    "bytes of a buffer": "t = torch.frombuffer(bytearray(4096), dtype=torch.float32)[1:]; u = t + 1; print(u.sum())",
    "mkldnn": "t = torch.randn(50, 100).to_mkldnn(); u = torch.relu(t); print(u.to_dense().shape)",
    "fake": """
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    t = torch.randn(100, 100, requires_grad=True); u = (t * 2).sum(); u.backward(); print(t.grad.shape)
    torch.nn.Linear(3, 4)(torch.ones(2, 3)).sum().backward()""",
    "functional": """
t = torch._to_functional_tensor(torch.ones(100, 100)); torch._enable_functionalization(reapply_views=True)
u = t * 2; u.add_(1); torch._disable_functionalization(); torch._sync(u)
print(torch._from_functional_tensor(u).sum())""",
    "functionalized": "print(torch.func.functionalize(lambda x: x.view(-1).add_(1))(torch.ones(100, 100)).sum())",
    "quantized": "t = torch.quantize_per_tensor(torch.randn(100, 100), 0.1, 0, torch.qint8); u = t.view(-1)",
    "jagged": """
t = torch.nested.nested_tensor([torch.ones(3), torch.ones(5)], layout=torch.jagged, requires_grad=True)
u = t * 2; print(u.values().sum())""",
    "nested": "t = torch.nested.nested_tensor([torch.ones(3), torch.ones(5)]); u = t * 2; print(len(u.unbind()))",
    "sparse": "t = torch.eye(100).to_sparse(); u = t * 2; print(u.to_dense().sum())",
    "sparse rows": "t = torch.eye(100).to_sparse_csr(); u = t * 2; print(u.to_dense().sum())",
    "sparse gradient": """
e = torch.nn.Embedding(50, 100, sparse=True); e(torch.tensor([1, 2])).sum().backward(); print(e.weight.grad._nnz())""",
    "meta": "t = torch.randn(100, 100, device='meta', requires_grad=True); u = (t * 2).sum(); u.backward()",
    "by __torch_function__": """
class Own(torch.Tensor):
    pass
t = torch.ones(100, 100).as_subclass(Own); u = t * 2; print(type(u), u.sum())""",
    "by __torch_dispatch__": """
class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [a.inner if isinstance(a, Wrapper) else a for a in args]
        return cls(func(*plain, **(kwargs or {})))
t = Wrapper(torch.ones(100, 100)); u = t * 2; print(u.inner.sum())""",
    "a parameter of a wrapper": """
t = torch.nn.Parameter(torch.ones(50_000), requires_grad=True); t.data.untyped_storage().resize_(0); u = t.view(-1)""",
    "complex": """
t = torch.ones(100, 100, dtype=torch.complex64, requires_grad=True); u = (t * 2j).abs().sum(); u.backward()
print(t.grad.sum())""",
    "half complex": "t = torch.ones(100, 100).to(torch.complex32); u = t.view(-1); print(u.shape)",
    "bool": "t = torch.ones(100, 100) > 0; u = t & t; print(u.sum())",
    "whole numbers": """
for kind in (torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int64):
    t = torch.ones(100, 100).to(kind); u = t.view(-1); print(u.shape, u.dtype)""",
    "resized whole numbers": """
for kind in (torch.uint16, torch.uint64, torch.int8, torch.bool):
    t = torch.ones(100, 100).to(kind); t.untyped_storage().resize_(2); u = t.view(-1)""",
    "eight bits": """
for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
    t = torch.ones(100, 100).to(getattr(torch, name)); u = t.view(-1); print(u.shape, u.dtype)
    t.untyped_storage().resize_(2); u = t.view(-1)""",
    "bfloat16": """
t = torch.ones(100, 100, dtype=torch.bfloat16); u = t * 2; print(u.sum())
t.untyped_storage().resize_(8); u = t.view(-1)""",
    "half": "t = torch.ones(100, 100, dtype=torch.float16); t.untyped_storage().resize_(8); u = t.view(-1)",
    "conjugate": "t = torch.ones(100, 100, dtype=torch.complex64); u = t.conj(); v = u.view(-1); print(v.sum())",
    "conjugate, then beyond": """
t = torch.ones(100, 100, dtype=torch.complex64); u = t.conj(); t.untyped_storage().resize_(8); u = u.view(-1)""",
    "negative": """
t = torch.ones(100, 100, dtype=torch.complex64); u = t.conj().imag; print(u.is_neg(), u.sum())
t.untyped_storage().resize_(8); u = u.detach()""",
    "ZeroTensor": "t = torch._efficientzerotensor((100, 100)); u = t * 2; print(u.shape); print((t + 1).sum())",
    "functorch": """
x = torch.ones(100, 100)
print(torch.func.vmap(lambda r: (r * 2).sum())(x).shape, torch.func.grad(lambda a: (a * a).sum())(x).sum())
print(torch.func.vmap(torch.func.grad(lambda r: (r * r).sum()))(x).shape)
print(torch.func.jvp(lambda a: a * a, (x,), (x,))[1].sum())""",
    "copied when written": "t = torch.ones(100, 100); u = torch._lazy_clone(t); u.add_(1); print(t.sum(), u.sum())",
    "pinned": "t = torch.ones(100, 100).pin_memory(); u = t * 2; print(u.sum())",
    "resized inside a backward": """
x = torch.ones(100, 100, requires_grad=True); y = x * 2
y.register_hook(lambda g: g.untyped_storage().resize_(0) and None)
z = y.sum()
print(z)""",
}


GRADES = ("none", "stats", "full")

# Runs programs plainly, and as `gradviz trace` does at every grade, each in a fork of one process that has imported
# PyTorch, with what PyTorch imports only when some of these tensors are made: that takes a second. What a fork prints,
# and how it ends, is kept beside the program.
IN_FORKS = """
import gc, os, runpy, sys, torch
import torch._dynamo
import gradviz.diagnose.run_rules, gradviz.sources.torch_recorder.recording
from gradviz.sources.script import Target, run

def plainly(program):
    runpy.run_path(program, run_name="__main__")
    return 0

def recorded(grade):
    return lambda program: run(
        Target(program, False, []), f"{program}.{grade}.gradviz", values=grade, engine="torch"
    ).status

ways = {"plain": plainly, **{grade: recorded(grade) for grade in ("none", "stats", "full")}}
gc.freeze()
for program in sys.argv[1:]:
    for way, started in ways.items():
        child = os.fork()
        if not child:
            for number, name in (1, "out"), (2, "err"):
                os.dup2(os.open(f"{program}.{way}.{name}", os.O_WRONLY | os.O_CREAT), number)
            try:
                status = started(program)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                status = 1
            sys.stdout.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with open(f"{program}.{way}.status", "w") as written:
            written.write(str(status))
"""


def _file_of(name: str) -> str:
    return f"{name.replace(' ', '_').replace(',', '')}.py"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which each program of `ODD` has run in every way."""
    folder = tmp_path_factory.mktemp("odd")
    for name, source in ODD.items():
        (folder / _file_of(name)).write_text(f"import torch\ntorch.manual_seed(0)\n{source}\nprint('end')\n")
    subprocess.run([sys.executable, "-c", IN_FORKS, *map(_file_of, ODD)], cwd=folder, check=True, timeout=1000)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no forks")
@pytest.mark.parametrize("name", ODD)
def test_a_program_with_an_odd_tensor_runs_as_without_a_recorder(ran: Path, name: str) -> None:
    if name == "pinned" and not torch.cuda.is_available():
        pytest.skip("only CUDA pins memory")

    def seen(way: str) -> tuple[str, str]:
        return tuple((ran / f"{_file_of(name)}.{way}.{part}").read_text() for part in ("status", "out"))

    status, out = seen("plain")
    assert (status, out.splitlines()[-1:]) == ("0", ["end"]), "it is to run without a recorder"
    for grade in GRADES:
        errors = (ran / f"{_file_of(name)}.{grade}.err").read_text()
        assert seen(grade) == (status, out), errors
        assert "recording stopped" not in errors
        with gradviz.open(ran / f"{_file_of(name)}.{grade}.gradviz") as opened:
            assert len(opened) > 0


@pytest.mark.parametrize("size", [10, 5000, 100_000])
def test_no_value_is_kept_of_a_tensor_that_shows_more_than_its_storage_holds(size: int) -> None:
    from gradviz.sources.torch_recorder.tensor_values import READER

    tensor = torch.ones(size)
    assert READER.keep(tensor, True) is not None
    tensor.untyped_storage().resize_(size * 4 - 1)
    assert READER.keep(tensor, True) is None
    assert READER.keep(tensor, False) is None
    assert READER.array(tensor) is None


def test_what_fits_to_the_last_byte_has_a_value() -> None:
    from gradviz.sources.torch_recorder.memory import check_room

    base = torch.arange(12.0)
    for view in (base[4:], base.view(3, 4).t(), base.as_strided((3, 4), (3, 1), 2), base[:0], base[11]):
        check_room(view)
    views = [base[4:], base.view(3, 4).t(), base.as_strided((3, 4), (4, 1)), base[11]]
    base.untyped_storage().resize_(11 * 4)
    for view in views:
        with pytest.raises(RuntimeError, match="more than its storage"):
            check_room(view)
