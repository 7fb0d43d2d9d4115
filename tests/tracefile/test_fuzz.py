"""Damaged and hostile traces, hundreds of them: every command reads them or refuses them in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="needs Unix: it limits the memory and the time of a process")

from tests.damage import trial
from tests.damage.mutations import WAYS
from tests.damage.trial import Laboratory, Violation, commands, read

SEED, PARTS = 16, 4
COUNT = 2 * sum(map(len, WAYS.values()))  # each way to damage a trace has two turns


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    return Laboratory(tmp_path_factory.mktemp("laboratory"), few=3)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(PARTS))
def test_no_damage_breaks_a_command(laboratory: Laboratory, first: int) -> None:
    found = {}
    for number in range(first, COUNT, PARTS):
        how, violations = laboratory.trial(SEED, number)
        if violations:  # python -m tests.damage.trial 16 NUMBER makes it again
            found[f"{number}: {how}"] = list(map(str, violations))
    assert not found


@pytest.mark.slow
def test_a_mutation_can_be_made_again(laboratory: Laboratory) -> None:
    for number in range(20):
        once = laboratory.mutated(SEED, number), files(laboratory.folder / "received")
        assert once == (laboratory.mutated(SEED, number), files(laboratory.folder / "received"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
class TestTheTrialSees:
    """What the trial is there to find, it finds."""

    @pytest.fixture
    def told(self, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
        def told(does: object) -> list[str]:
            monkeypatch.setattr("gradviz.cli.info.overview", does)
            trial._prepare(laboratory.folder, "lesson")
            return kinds(read(laboratory.folder, {"info": commands("lesson")["info"]}))

        return told

    def test_a_sound_trace_read(self, laboratory: Laboratory) -> None:
        assert len(laboratory.sound) > 5
        for name in laboratory.sound:
            trial._prepare(laboratory.folder, name)
            assert read(laboratory.folder, commands(name)) == []

    def test_a_traceback(self, told: object) -> None:
        assert told(lambda query: 1 / 0) == ["traceback: ZeroDivisionError"]

    def test_much_memory(self, told: object) -> None:
        assert told(lambda query: bytearray(2 << 30)) == ["traceback: MemoryError"]

    def test_much_time(self, told: object, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trial, "SECONDS", 1)
        assert told(lambda query: sum(range(10**10))) == ["over time, and not to be interrupted"]

    def test_much_time_in_python(self, told: object, monkeypatch: pytest.MonkeyPatch) -> None:
        def counts(query: object) -> None:
            while True:
                pass

        monkeypatch.setattr(trial, "SECONDS", 1)
        assert told(counts) == ["over time"]

    def test_a_file_left_behind(self, told: object) -> None:
        assert "a file was left behind" in told(lambda query: Path("../received/new").touch())

    def test_a_file_deleted(self, told: object) -> None:
        assert "a file was deleted" in told(lambda query: Path("../received/thesis.txt").unlink())

    def test_control_characters(self, told: object) -> None:
        def told_by_the_console(query: object) -> None:
            print("\x9b31m")
            raise SystemExit(0)

        assert told(told_by_the_console) == ["raw control characters"]

    def test_another_exit_status(self, told: object) -> None:
        def ended(query: object) -> None:
            raise SystemExit(7)

        assert told(ended) == ["exit status"]

    def test_a_refusal_of_many_lines(self, told: object, capsys: object) -> None:
        import sys

        def refused(query: object) -> None:
            print("one\ntwo", file=sys.stderr)
            raise SystemExit(2)

        assert told(refused) == ["a refusal of many lines"]


def kinds(violations: list[Violation]) -> list[str]:
    return [violation.kind for violation in violations]
