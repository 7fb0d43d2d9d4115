"""What commands take of a run of 64 small ranks, one of which is apart: each has to stay below 10 s and 1 GB."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine, table
from trace_open import taken

COUNT = 64


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        make = [sys.executable, "-m", "tests.ranks.many_ranks", name, str(COUNT), "17"]
        subprocess.run(make, cwd=Path(__file__).parent.parent, check=True)
        rows = [
            ("`info`", *taken("info", name)),
            ("`check`", *taken("check", name, "--fail-on", "error")),
            ("`report`", *taken("report", name, "-o", Path(name) / "report.html")),
        ]
        table(f"a run of {COUNT} ranks", rows, ("command", "CPU time", "memory"))


if __name__ == "__main__":
    main()
