"""The table of versions in docs/pytorch.md: `.ci/torch-versions --write` calls this with a version and its results.

python -m tests.versions.table VERSION TESTS PROGRAMS    with the files that pytest and the programs printed into
"""

from __future__ import annotations

import re
import sys
from datetime import date
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs" / "pytorch.md"
_ROW = re.compile(r"^\| (\d+(?:\.\d+)+) \|.*\n", re.MULTILINE)


def row_of(version: str, day: str, tests: str, programs: str) -> str:
    """The row of a version. `tests` and `programs` are the last lines of what was printed. Raises ValueError if they
    count nothing."""
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|skipped|failed)", tests)}
    done = re.match(r"(\d+ of \d+) programs", programs)
    if "passed" not in counts or done is None:
        raise ValueError(f"no counts in {tests!r} and {programs!r}")
    passed = f"{counts['passed']:,}" + (f", {counts['failed']} failed" if "failed" in counts else "")
    return f"| {version} | {day} | {passed} | {counts.get('skipped', 0)} | {done[1]} |\n"


def with_row(page: str, row: str) -> str:
    """The page with this row, in the place of the version's row before or among the others in their order."""
    rows = {found[1]: found[0] for found in _ROW.finditer(page)}
    rows[row.split(" ")[1]] = row
    ordered = sorted(rows, key=lambda version: [int(part) for part in version.split(".")])
    places = list(_ROW.finditer(page))
    return page[: places[0].start()] + "".join(rows[version] for version in ordered) + page[places[-1].end() :]


def main() -> None:
    """Write the row."""
    version, *files = sys.argv[1:]
    tests, programs = (Path(file).read_text().splitlines()[-1] for file in files)
    DOCS.write_text(with_row(DOCS.read_text(), row_of(version, f"{date.today()}", tests, programs)))


if __name__ == "__main__":
    main()
