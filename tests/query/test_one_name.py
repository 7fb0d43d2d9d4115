"""A tensor has one name, in every view of a trace: also one that the source gives no name."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradviz.graph.build import build
from gradviz.graph.model import LEAF, TENSOR, to_json
from gradviz.page import views
from gradviz.pictures.render import svg
from gradviz.sources.script import Target, run
from gradviz.tracefile import Trace, open_trace
from gradviz.words import Stop, Words
from gradviz.words.chain_rule import why
from gradviz.words.rows import rows
from gradviz.words.sentences import sentence
from gradviz.words.stop import subject
from tests.invoked import invoked

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = (
    "many_paths", "detach", "double_backward", "nan", "written_over", "forward_and_reverse", "recurrent",
    "faults/gan_detach", "faults/masked_row", "faults/unused_parameter",
)  # fmt: skip
UNNAMED = """
import gradviz.engine as torch

parts = [torch.ones(2, requires_grad=True), torch.full((2,), 3.0, requires_grad=True)]
more = {"a": torch.zeros(2, requires_grad=True)}
((parts[0] * parts[1]).exp() + more["a"]).sum().backward()
(parts[0] * 0).log().sum().backward()
"""

# A tensor called by its number: not an id (`t5v1`, `"t5"`), nor a part of another word.
_BY_NUMBER = re.compile(r"""(?<![\w.#"'-])t(\d+)(?![\w"'])""")


@pytest.fixture(scope="module", params=[*PROGRAMS, "unnamed"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    folder = tmp_path_factory.mktemp("named")
    script = EXAMPLES / f"{request.param}.py"
    if request.param == "unnamed":
        script = folder / "unnamed.py"
        script.write_text(UNNAMED)
    run(Target(str(script), False, ()), folder / "run.gradviz", values="full", engine="numpy")
    with open_trace(folder / "run.gradviz") as trace:
        yield trace


def graphs(trace: Trace) -> Iterator:
    for one in trace.passes[:3]:
        yield build(trace, one.number)
    yield build(trace, whole=True)


def printed(*arguments: str) -> str:
    return invoked(arguments).stdout


def drawn_texts(picture: str) -> str:
    return " ".join(map(html.unescape, re.findall(r"<text[^>]*>([^<]*)</text>", picture)))


def told(trace: Trace) -> str:
    """All that the stepper says of a run."""
    words = Words(trace)
    stops = [Stop(words, k) for k in range(min(trace.count, 400))]
    return "\n".join("\n".join([sentence(stop), *(row.text for row in rows(stop)), *why(stop)]) for stop in stops)


def test_a_tensor_has_one_name_in_pictures_page_json_and_stepper(recorded: Trace) -> None:
    words = Words(recorded)
    shared = views.Shared(words)
    for graph in graphs(recorded):
        data = {node["id"]: node for node in to_json(graph)["nodes"]}
        page = {node["id"]: node for node in views.view(graph, None, shared)["nodes"]}
        for node in graph.nodes.values():
            if node.kind not in (LEAF, TENSOR):
                continue
            name = words.called(node.number)
            assert node.label == name
            assert data[node.id]["name"] in (name, None), "null: the source gives it none"
            shown = page[node.id]
            assert shown.get("name") or shown.get("called") or f"t{shown['tensor']}" == name
            if not re.match(r"gradient of |.*\.tangent$", name):
                assert str(subject(words, name, recorded.count - 1)) == name, "it is found by its name"


@pytest.mark.slow
def test_no_view_calls_a_tensor_by_its_number_that_has_a_name(recorded: Trace, tmp_path: Path) -> None:
    words, path = Words(recorded), str(recorded.path)
    said = {
        "pictures": "\n".join(drawn_texts(svg(graph)) for graph in graphs(recorded)),
        "stepper": told(recorded),
        "info": printed("info", path),
        "check": printed("check", path),
    }
    leaves = [leaf["name"] for leaf in json.loads(printed("info", path, "--json"))["leaves"]]
    said["json of info"] = "\n".join(leaves)
    said["json of check"] = "\n".join(
        finding["message"] for finding in json.loads(printed("check", path, "--format", "json"))["findings"]
    )
    said["why"] = "\n".join(printed("why", path, leaf) for leaf in leaves[:2])
    printed("report", path, "-o", str(tmp_path / "report.html"))
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    beside = re.sub(r"<(svg|style).*?</\1>|<[^>]+>", " ", report, flags=re.DOTALL)
    said["report"] = drawn_texts(report) + html.unescape(beside)
    assert all(said[view] for view in ("pictures", "stepper", "info", "check", "report"))
    for view, text in said.items():
        for number in set(_BY_NUMBER.findall(text)):
            assert words.called(int(number)) == f"t{number}", f"{view} calls it t{number}"


def test_the_leaves_of_info_are_called_as_the_stepper_calls_them(recorded: Trace) -> None:
    words = Words(recorded)
    leaves = {leaf["name"] for leaf in json.loads(printed("info", str(recorded.path), "--json"))["leaves"]}
    last = words.query.at(recorded.count - 1)
    assert leaves <= {words.called(tensor) for tensor in last.newest_leaves + last.frozen}
    assert leaves >= {words.called(tensor) for tensor in last.newest_leaves}
