"""Which module `import torch` gives: the user's own before all, PyTorch where it is installed, else gradviz's engine,
which is said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
WITHOUT_PYTORCH = """
from importlib.machinery import PathFinder
real = PathFinder.find_spec.__func__
def find_spec(cls, name, path=None, target=None):
    found = real(cls, name, path, target)
    is_pytorch = name == "torch" and found is not None and "site-packages" in str(found.origin)
    return None if is_pytorch else found
PathFinder.find_spec = classmethod(find_spec)
"""
USES_IT = "import torch\nprint(torch.mine())\nimport torch.deeper\nprint(torch.deeper.mine())\n"
DIFFERENTIATES = "import torch\nx = torch.tensor(2.0, requires_grad=True)\n(x * x).backward()\nprint(x.grad)\n"


@pytest.fixture
def without_pytorch(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has no PyTorch."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT_PYTORCH)
    return {"PYTHONPATH": str(tmp_path / "site")}


@pytest.fixture(params=[False, True], ids=["with what is installed", "without PyTorch"])
def environment(request: pytest.FixtureRequest, without_pytorch: dict[str, str]) -> dict[str, str]:
    return without_pytorch if request.param else {}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a package `torch` of the user's, and a script."""
    package = tmp_path / "job" / "torch"
    package.mkdir(parents=True)
    for name in ("__init__.py", "deeper.py"):
        (package / name).write_text(f"def mine():\n    return 'my {name}'\n")
    (package.parent / "job.py").write_text(USES_IT)
    return package.parent


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "numpy"])
def test_a_package_torch_beside_the_script_is_the_users(
    engine: str, gradviz: Run, job: Path, environment: dict[str, str]
) -> None:
    done = gradviz("trace", "--engine", engine, "job.py", cwd=job, env=environment, python=sys.executable)
    assert (done.returncode, done.stdout) == (0, "my __init__.py\nmy deeper.py\n")
    assert all(line.startswith("gradviz: ") for line in done.stderr.splitlines())
    assert "PyTorch" not in done.stderr


@pytest.mark.slow
def test_a_file_torch_beside_the_script_is_the_users(gradviz: Run, tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "torch.py").write_text("def mine():\n    return 'my file'\n")
    (tmp_path / "job.py").write_text("import torch\nprint(torch.mine())\n")
    done = gradviz("trace", "job.py", env=environment, python=sys.executable)
    assert (done.returncode, done.stdout) == (0, "my file\n")


def test_a_recording_inside_a_program_leaves_the_users_torch_alone(job: Path, environment: dict[str, str]) -> None:
    (job / "job.py").write_text(
        f"import gradviz\nwith gradviz.record('run.gradviz'):\n    {USES_IT.replace(chr(10), '; ')}\n"
    )
    ended = subprocess.run(
        [sys.executable, "job.py"], cwd=job, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert (ended.stdout, ended.stderr) == ("my __init__.py\nmy deeper.py\n", "")


@pytest.mark.slow
def test_without_pytorch_it_is_said_which_engine_serves_and_why(
    gradviz: Run, tmp_path: Path, without_pytorch: dict[str, str]
) -> None:
    (tmp_path / "job.py").write_text(DIFFERENTIATES)
    done = gradviz("trace", "job.py", env=without_pytorch)
    assert (done.returncode, done.stdout) == (0, "tensor(4.)\n")
    assert done.stderr.splitlines()[0] == (
        "gradviz: PyTorch is not installed here, so gradviz's engine on NumPy serves `import torch` "
        f"(to record PyTorch: {sys.executable} -m pip install torch)"
    )


@pytest.mark.slow
def test_nothing_is_said_where_the_engine_was_asked_for(
    gradviz: Run, tmp_path: Path, without_pytorch: dict[str, str]
) -> None:
    (tmp_path / "job.py").write_text(DIFFERENTIATES)
    assert "PyTorch" not in gradviz("trace", "--engine", "numpy", "job.py", env=without_pytorch).stderr


@pytest.mark.slow
def test_a_folder_torch_that_is_no_package_hides_no_engine(
    gradviz: Run, tmp_path: Path, without_pytorch: dict[str, str]
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "job.py").write_text(DIFFERENTIATES)
    assert gradviz("trace", "job.py", env=without_pytorch).stdout == "tensor(4.)\n"
