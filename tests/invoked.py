"""A command of gradviz's in this process, which takes a twentieth of the time."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from click.testing import CliRunner, Result

from gradviz.cli.main import main

# Click up to 8.1 mixes the two streams unless told.
_APART = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}


def invoked(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Result:
    """What `gradviz ARGUMENTS` ends with and prints, stdout and stderr apart."""
    return CliRunner(**_APART).invoke(main, arguments, env=env)  # type: ignore[arg-type]
