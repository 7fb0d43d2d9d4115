"""Pictures as in a textbook: gates and wires, the value above and the gradient below, the local derivative at the
gate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gradviz
import gradviz.engine as torch
from gradviz.errors import GradvizError
from gradviz.graph.build import build
from gradviz.pictures.scene import Scene
from gradviz.pictures.style import NODES, look
from gradviz.pictures.textbook import MOST, textbook
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace
from gradviz.words.words import Words
from tests.invoked import invoked

PATHS = """
import gradviz.engine as torch
x = torch.tensor(3.0, requires_grad=True)
c = torch.tensor(3.0)
y = x * 0.2
z = x + y * c
z.backward()
"""


def scene_of(folder: Path, program: str, names: tuple[str, ...] = ()) -> Scene:
    source, path = folder / "p.py", folder / "p.gradviz"
    source.write_text(program)
    with gradviz.record(path):
        exec(compile(program, str(source), "exec"), {"__name__": "p"})
    with open_trace(path) as trace:
        return textbook(Words(trace), build(trace), names)


@pytest.fixture
def paths(tmp_path: Path) -> Scene:
    return scene_of(tmp_path, PATHS)


def texts(scene: Scene, kind: str) -> list[list[str]]:
    return [[text for _, text in thing.lines] for thing in scene.things.values() if thing.classes[0] == kind]


def test_a_wire_has_the_value_above_and_the_gradient_below(paths: Scene) -> None:
    assert texts(paths, "on-wire") == [
        ["y = 0.6", "∂z/∂y = 3"],
        ["y * c = 1.8", "∂z/∂(y * c) = 1"],
        ["z = 4.8 (root)", "∂z/∂z = 1"],
    ]


def test_a_gate_has_its_local_derivatives(paths: Scene) -> None:
    assert texts(paths, "gate") == [
        ["× 0.2", "∂y/∂x = 0.2"],
        ["×", "∂(y * c)/∂y = c = 3"],
        ["+", "∂z/∂x = 1", "∂z/∂(y * c) = 1"],
    ]


def test_a_tensor_that_is_used_twice_has_the_sum_and_each_wire_its_part(paths: Scene) -> None:
    assert ["x = 3", "leaf", "∂z/∂x = 1 + 0.6 = 1.6"] in texts(paths, "variable")
    [x] = [thing.id for thing in paths.things.values() if thing.lines[0][1] == "x = 3"]
    assert sorted(link.label for link in paths.links if link.source == x) == [["0.6"], ["1"]]


def test_what_requires_no_grad_says_so(paths: Scene) -> None:
    assert ["c = 3", "requires_grad=False"] in texts(paths, "variable")
    (other,) = [thing.classes for thing in paths.things.values() if thing.lines[0][1] == "c = 3"]
    (leaf, *_) = [thing.classes for thing in paths.things.values() if ("fact", "leaf") in thing.lines]
    assert look(NODES, other)["fillcolor"] != look(NODES, leaf)["fillcolor"]


def test_tensors_can_have_the_names_of_a_textbook(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, PATHS, ("w1", "b", "w2", "w3", "w4"))
    assert texts(scene, "on-wire")[-1] == ["w4 = 4.8 (root)", "∂w4/∂w4 = 1"]
    assert texts(scene, "variable")[0][2].startswith("∂w4/∂w1 = ")


BROADCAST = """
import gradviz.engine as torch
x = torch.ones(2, 2, requires_grad=True)
b = torch.tensor([1.0, 2.0], requires_grad=True)
z = (x + b).sum()
z.backward()
"""


def test_a_gate_tells_the_sum_over_broadcast_dimensions(tmp_path: Path) -> None:
    assert "∂(x + b)/∂b = 1, summed over dim 0" in texts(scene_of(tmp_path, BROADCAST), "gate")[0]


LONG = """
import gradviz.engine as torch
x = torch.tensor(1.0, requires_grad=True)
for _ in range(41):
    x = x * 1.1
x.backward()
"""


def test_a_large_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GradvizError, match=f"up to {MOST} operations with a grad_fn: there are 41"):
        scene_of(tmp_path, LONG)


def test_a_tensor_at_hand_is_drawn_without_gradients() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    c = torch.tensor(2.0)
    y = x * c
    svg = gradviz.draw(y, style="textbook").svg
    shown = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert "y = 6 (root)" in shown
    assert not [text for text in shown if text.startswith("∂y/∂y")]
    assert "a number" not in svg


def test_a_tensor_at_hand_can_have_its_gradients() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    y = x * x
    svg = gradviz.draw(y, style="textbook", gradients=True).svg
    assert "∂y/∂x = 3 + 3 = 6" in svg


def test_formats_without_a_layout_are_refused(tmp_path: Path) -> None:
    x = torch.tensor(3.0, requires_grad=True)
    with pytest.raises(GradvizError, match=r"a textbook's picture cannot be written as \.mmd"):
        gradviz.draw(x * 2, style="textbook").save(tmp_path / "x.mmd")


def test_the_boxes_of_a_graph_can_have_other_names(tmp_path: Path) -> None:
    program, trace, picture = (tmp_path / name for name in ("p.py", "p.gradviz", "p.dot"))
    program.write_text(PATHS)
    run(Target(str(program), False, []), trace)
    assert invoked(["graph", str(trace), "--names", "w1,b,w2,w3,w4", "-o", str(picture)]).exit_code == 0
    names = re.findall(r'^\s*t\d+ \[label="\s*(\S+)', picture.read_text(), re.MULTILINE)
    assert set(names) == {"w1", "b", "w2", "w3", "w4"}


def test_a_page_has_the_names_of_the_program(tmp_path: Path) -> None:
    program, trace = tmp_path / "p.py", tmp_path / "p.gradviz"
    program.write_text(PATHS)
    run(Target(str(program), False, []), trace)
    done = invoked(["graph", str(trace), "--names", "w1", "-o", str(tmp_path / "p.html")])
    assert done.exit_code == 2
    assert "--names is for pictures" in done.stderr


@pytest.mark.slow
def test_a_gate_with_a_thousand_inputs_is_not_drawn(tmp_path: Path) -> None:
    program = """
import gradviz.engine as torch
parts = [torch.tensor(1.0, requires_grad=True) for _ in range(1000)]
torch.stack(parts).sum().backward()
"""
    with pytest.raises(GradvizError, match=r"up to 400 edges of operations: there are 1,001 here"):
        scene_of(tmp_path, program)


CHAIN = """
import gradviz.engine as torch
w = torch.tensor(0.5, requires_grad=True)
y = torch.tensor(2.0, requires_grad=True) * w
for _ in range({rounds}):
    y = y * w
y.backward()
"""


@pytest.mark.slow
def test_a_long_chain_is_drawn_from_top_to_bottom(tmp_path: Path) -> None:
    for rounds, rankdir in ((2, "LR"), (12, "TB")):
        folder = tmp_path / str(rounds)
        folder.mkdir()
        assert scene_of(folder, CHAIN.format(rounds=rounds)).rankdir == rankdir
    path = folder / "p.gradviz"
    drawn = [path.with_suffix(".svg"), path.with_name("row.svg")]
    for picture, more in zip(drawn, ([], ["--rankdir", "LR"]), strict=True):
        command = ["graph", str(path), "-o", str(picture), "--style", "textbook", *more]
        assert invoked(command).exit_code == 0
    sizes = [re.search(r'width="(\d+)[^"]*" height="(\d+)', picture.read_text(encoding="utf-8")) for picture in drawn]
    (wide, tall), (row_wide, row_tall) = ([int(part) for part in found.groups()] for found in sizes if found)
    assert wide < tall
    assert row_wide > 2 * row_tall


def test_a_chain_of_long_names_is_drawn_from_top_to_bottom(tmp_path: Path) -> None:
    program = CHAIN.format(rounds=5).replace("y = y * w", "y = torch.tanh(y * torch.tensor(1.5) * torch.exp(-w))")
    scene = scene_of(tmp_path, program)
    assert scene.rankdir == "TB"
    long = [lines for lines in texts(scene, "on-wire") if len(lines) == 3]
    assert long
    assert all(lines[1].startswith("∂y/∂(") and re.fullmatch(r"= -?[\d.e-]+", lines[2]) for lines in long)


def test_a_result_with_the_name_of_the_root_is_told_from_it(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, CHAIN.format(rounds=2))
    gates = [" ".join(lines) for lines in texts(scene, "gate")]
    steps = [re.search(r"∂(y(?:#\d+)?)/∂(y(?:#\d+)?) = w", text) for text in gates[1:]]
    [(second, first), (last, before)] = [found.groups() for found in steps if found]
    assert re.search(rf"∂{first}/∂w", gates[0])
    assert before == second
    assert (last, len({first, second, last})) == ("y", 3)


FORWARD = """
import gradviz.engine as torch
from gradviz.engine.autograd import forward_ad
with forward_ad.dual_level():
    w1 = forward_ad.make_dual(torch.tensor(2.0), torch.tensor(1.0))
    w2 = forward_ad.make_dual(torch.tensor(3.0), torch.tensor(0.0))
    w3 = w1 * w2
    w4 = torch.sin(w1)
    w5 = w3 + w4
"""


def test_forward_mode_is_drawn_with_the_sums_that_make_each_tangent(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, FORWARD)
    assert texts(scene, "on-wire") == [
        ["w3 = 6", "tangent = 3 × 1 + 2 × 0 = 3"],
        ["w4 = 0.909297", "tangent = -0.416147 × 1 = -0.416147"],
        ["w5 = 6.9093", "tangent = 1 × 3 + 1 × -0.416147 = 2.58385"],
    ]
    assert texts(scene, "gate")[0] == ["×", "∂w3/∂w1 = w2 = 3", "∂w3/∂w2 = w1 = 2"]
    assert sum("tangent" in link.classes for link in scene.links) == 5


def test_forward_mode_is_drawn_beside_reverse_mode(tmp_path: Path) -> None:
    reverse = "x = torch.tensor(2.0, requires_grad=True)\ny = x * 3\ny.backward()\n"
    wires = texts(scene_of(tmp_path, FORWARD + reverse), "on-wire")
    assert ["y = 6 (root)", "∂y/∂y = 1"] in wires
    assert ["w3 = 6", "tangent = 3 × 1 + 2 × 0 = 3"] in wires


def test_a_leaf_has_the_value_that_the_operation_read(tmp_path: Path) -> None:
    scene = scene_of(
        tmp_path,
        "import gradviz.engine as torch\n"
        "w = torch.tensor(2.0, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([w], lr=1.0)\n"
        "loss = w * 3\n"
        "loss.backward(retain_graph=True)\n"
        "optimizer.step()\n"
        "loss.backward()\n",
    )
    assert [lines[0] for lines in texts(scene, "variable")] == ["w = 2"]


def test_what_a_write_in_place_changed_is_drawn_apart_from_what_it_was(tmp_path: Path) -> None:
    scene = scene_of(
        tmp_path,
        "import gradviz.engine as torch\n"
        "x = torch.tensor(1.0, requires_grad=True)\n"
        "h = x * 2\n"
        "y = h * 3\n"
        "h.add_(1)\n"
        "loss = y * h\n"
        "loss.backward()\n"
        "h.mul_(100)\n",
    )
    assert [lines[:2] for lines in texts(scene, "on-wire")] == [
        ["h = 2", "∂loss/∂h = 6 + 9 = 15"],
        ["y = 6", "∂loss/∂y = 3"],
        ["h = 3", "∂loss/∂h = 6"],
        ["loss = 18 (root)", "∂loss/∂loss = 1"],
    ]
