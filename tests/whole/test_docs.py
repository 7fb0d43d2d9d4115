"""The documentation's commands run as written, in the order written, and print what the pages show.

`python -m tests.whole.test_docs` writes into the lessons and the guide to the stepper what their commands print now.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from gradviz.cli import doctor
from gradviz.step.verbs import GROUPS, KEY_SIGNS
from tests.invoked import invoked
from tests.warm import python

pytestmark = pytest.mark.slow  # the commands of the pages run one after the other

ROOT = Path(__file__).parents[2]
# Pages that show, below a block of commands, what the last of them prints.
GUIDE, VERBS_BELOW = ROOT / "docs/stepper.md", "## All verbs\n\n"
SHOWING = [GUIDE, *sorted((ROOT / "docs/lessons").glob("*.md"))]
OTHERS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in OTHERS if page not in SHOWING]
SHOWN = re.compile(r"^```console\n(?P<commands>(?:[^`].*\n)*)```\n\n```text\n(?P<printed>(?:.*\n)*?)```$", re.MULTILINE)
READING = (
    "info",
    "graph",
    "step",
    "why",
    "what-if",
    "diff",
    "report",
    "redact",
    "tables",
    "export",
)  # the commands that run no script
INSTALLS = re.compile(r"^pip install [^&]*(&& )?")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The commands of a page, without the installation that this environment has behind it."""
    lines = [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
    return [command for line in lines if (command := INSTALLS.sub("", line)) not in ("", "pytest")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return furnished(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """A directory as a reader of the documentation has it."""
    return shutil.copytree(model, tmp_path / "here", symlinks=True)


def furnished(directory: Path) -> Path:
    """A directory with the examples, a trace, a lesson."""
    (directory / "examples").symlink_to(ROOT / "examples")
    (directory / "lesson.py").write_text((ROOT / "examples/leaves.py").read_text().replace("gradviz.engine as ", ""))
    run("gradviz trace examples/quickstart.py", directory)
    return directory


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    if words[0] == "gradviz" and words[1] in READING:
        return called(words[1:], folder)
    if words[0] == "gradviz":
        words[:1] = [python(torch=imports_torch(words, folder)), "-m", "gradviz"]
    env = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def imports_torch(words: list[str], folder: Path) -> bool:
    """Whether a script of a command imports PyTorch. A fork of a Python without it takes half of the time."""
    scripts = [folder / word for word in words if word.endswith(".py")]
    texts = [script.read_text(encoding="utf-8") for script in scripts if script.is_file()]
    return not texts or any(re.search(r"^\s*(import|from) torch\b", text, re.MULTILINE) for text in texts)


def called(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A command that runs no script, in this process, which takes a twentieth of the time."""
    with contextlib.chdir(folder):
        done = invoked(words, env={"COLUMNS": "120"})
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_runs(page: Path, folder: Path) -> None:
    if page.name == "what-if.md":
        pytest.importorskip("torch", reason="a pass runs again on PyTorch")
    for command in commands(page):
        done = run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def filled(page: Path, folder: Path) -> str:
    """The page with what its commands print in the place of what it shows."""

    def printed(block: re.Match[str]) -> str:
        lines = block["commands"].splitlines()
        done = None
        for line in lines:
            if line.startswith("$ "):
                done = run(line[2:], folder)
                assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert done is not None
        text = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
        return f"```console\n{block['commands']}```\n\n```text\n{text}\n```"

    return SHOWN.sub(printed, page.read_text())


def verb_table() -> str:
    """The table of verbs, as the guide to the stepper has it."""
    lines = []
    for title, verbs in GROUPS.items():
        lines += [f"### {title}", "", "| command | keys | does |", "|-|-|-|"]
        for verb in verbs:
            keys = " ".join(f"`{KEY_SIGNS.get(key, key)}`" for key in verb.keys.split())
            lines.append(f"| `{verb.usage}` | {keys} | {verb.help} |".replace("N|all", "N\\|all"))
        lines.append("")
    return "\n".join(lines)


def test_the_guide_to_the_stepper_lists_every_verb() -> None:
    _, _, table = GUIDE.read_text().partition(VERBS_BELOW)
    assert table == verb_table(), "python -m tests.whole.test_docs writes it anew"


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page: Path, folder: Path) -> None:
    text = page.read_text()
    assert text.count("```console") == len(SHOWN.findall(text)) > 0 or page.stem in ("README", "claims")
    assert alike(filled(page, folder), text), "python -m tests.whole.test_docs writes it anew"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_piece_of_python_in_a_page_runs(page: Path, folder: Path) -> None:
    for block in blocks(page, "python"):
        runs(block, folder)


@pytest.mark.torch
def test_every_piece_of_pytorch_in_a_page_runs(folder: Path) -> None:
    pytest.importorskip("torch")
    pieces = blocks(ROOT / "docs/pytorch.md", "py")
    assert pieces
    for block in pieces:
        runs(block, folder)


def runs(block: str, folder: Path) -> None:
    """Run a piece of Python in a folder, and fail with what it wrote if it does."""
    done = subprocess.run([python(), "-c", block], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_what_the_commands_print(folder: Path) -> None:
    told, shown = blocks(ROOT / "README.md", "text")
    traced, then = commands(ROOT / "README.md")[:2]
    assert run(traced, folder).stderr == told
    assert run(then, folder).stdout.strip() == shown.strip()


def test_the_readme_counts_the_lines_of_its_example() -> None:
    tree = ast.parse((ROOT / "examples/quickstart.py").read_text())
    lines = len(tree.body) - 1  # the docstring
    words = {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}
    assert f"quickstart.py), {words[lines]} lines of code" in (ROOT / "README.md").read_text()


def test_the_readme_and_doctor_say_before_an_install_how_much_it_brings() -> None:
    readme = (ROOT / "README.md").read_text()
    for command, size in (("`pip install .`", "110 MB"), ("/cpu`", "0.9 GB"), ('`pip install ".[torch]"`', "5.5 GB")):
        (row,) = [line for line in readme.splitlines() if line.startswith("| `pip") and f"{command} |" in line]
        assert size in row
    assert re.findall("[0-9.]+ GB", doctor.OPTIONAL["torch"]) == ["0.9 GB", "5.5 GB"]


def test_every_script_that_the_readme_runs_is_in_the_checkout() -> None:
    words = [word for command in commands(ROOT / "README.md") for word in shlex.split(command)]
    scripts = [word for word in words if word.endswith(".py")]
    assert len(scripts) > 2
    assert [script for script in scripts if not (ROOT / script).exists()] == []


@pytest.mark.parametrize("page", [*PAGES, *SHOWING], ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


PICTURES = sorted((ROOT / "docs/images").glob("*.svg"))
OTHERWISE = {  # than by `trace SCRIPT --graph FILE`, with a script of the same name
    "legend": ["gradviz graph --legend -o legend.svg"],
    "textbook": [
        "gradviz trace examples/many_paths.py",
        "gradviz graph many_paths.gradviz --style textbook -o textbook.svg",
    ],
}


def drawing(name: str) -> list[str]:
    """The commands that draw a picture of the docs."""
    if name in OTHERWISE:
        return OTHERWISE[name]
    script = f"examples/{name}.py"
    if not (ROOT / script).exists():
        pytest.importorskip("torch")
        script = f"examples/torch/{name}.py"
    return [f"gradviz trace {script} --graph {name}.svg"]


@pytest.mark.parametrize("picture", PICTURES, ids=[picture.stem for picture in PICTURES])
def test_a_picture_is_the_one_that_gradviz_draws_now(picture: Path, folder: Path) -> None:
    for command in drawing(picture.stem):
        assert run(command, folder).returncode == 0
    drawn_now, drawn_then = (sorted(texts(file)) for file in (folder / picture.name, picture))
    assert alike("\n".join(drawn_now), "\n".join(drawn_then)), f"draw it again: {picture.name}"


NETWORKS = {
    "MLP of three layers": "mlp",
    "CNN": "cnn",
    "GRU cell, ten steps": "gru",
    "two transformer layers": "transformer",
    "generator and discriminator": "gan",
}


def test_the_compared_pictures_have_the_sizes_that_the_table_says() -> None:
    def area(network: str, tool: str) -> int:
        picture = (ROOT / f"docs/images/compare/{network}-{tool}.svg").read_text()
        size = re.search(r'<svg width="([0-9.]+)pt" height="([0-9.]+)pt"', picture)
        assert size is not None
        width, height = (round(float(one)) for one in size.groups())
        assert f"{width} × {height}" in rows[network]
        return width * height

    told = re.findall(r"^\| ([^|]+) \| (\d.*)$", (ROOT / "docs/pictures.md").read_text(), re.MULTILINE)
    rows = {NETWORKS[name]: sizes for name, sizes in told}
    times = {name: area(name, "gradviz") / area(name, "torchview") for name in rows}
    assert all(ratio < 2 for ratio in times.values()), times


def test_every_kind_of_thing_and_line_in_the_legend_is_explained(folder: Path) -> None:
    explained = (ROOT / "docs/reading-the-graph.md").read_text()
    for words in ("retains", "frozen", "changed in place", "in place", "cuts", "saved tensor", "NaN or inf", "group"):
        assert words in explained.replace("**", "").lower() or words in explained.replace("**", "")
    keys = re.findall(r'^  \["(.+?)", "(.+?)"\],$', (ROOT / "gradviz/page/main.js").read_text(), re.MULTILINE)
    page = (ROOT / "docs/page.md").read_text()
    assert len(keys) == 25
    for _, what in keys:
        assert what.removeprefix("chart of ") in page, what


def texts(svg: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text())


FRACTION = re.compile(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?(?![\w.])")


def alike(one: str, other: str) -> bool:
    """Whether two texts are the same but for the last shown digits of numbers, which are another CPU's to round."""
    words, others = ([part.split() for part in FRACTION.split(text)] for text in (one, other))
    numbers, those = ([float(number) for number in FRACTION.findall(text)] for text in (one, other))
    return words == others and numbers == pytest.approx(those, rel=2e-3)


def test_texts_are_alike_that_differ_in_the_last_digits_alone() -> None:
    assert alike("w = [0.28059]  (event 3)", "w = [0.2806] (event 3)")
    assert not alike("w = [0.28059] (event 3)", "w = [0.28159] (event 3)")
    assert not alike("w = 0.5 (event 3)", "w = 0.5 (event 4)")
    assert not alike("w = 0.5", "w = 0.5, 0.5")


def test_the_moving_picture_of_the_stepper_can_be_made_again(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    from tests.step.stepper_gif import LINES, frames

    screens = dict(frames(tmp_path))
    assert screens.keys() == set(LINES)
    assert "the&#160;chain&#160;rule" in screens["why"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        furnished(Path(name))
        for written in SHOWING:
            written.write_text(filled(written, Path(name)))
    text, heading, _ = GUIDE.read_text().partition(VERBS_BELOW)
    GUIDE.write_text(text + heading + verb_table())
