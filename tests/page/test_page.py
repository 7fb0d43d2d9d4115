"""The HTML page in a real browser: it loads, replays, searches, folds, and a stranger's trace executes nothing."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

import gradviz
import gradviz.engine as torch
from gradviz import page as page_of
from gradviz.cli.drawing import write_page
from gradviz.engine import nn
from gradviz.events.kinds import Kind
from gradviz.graph.build import build
from gradviz.graph.model import Graph
from gradviz.page import views
from gradviz.pictures.render import DrawError, save
from gradviz.query import Query
from gradviz.sources.record import record
from gradviz.sources.script import Target, run
from gradviz.step.state import Session
from gradviz.tracefile import Trace, open_trace
from gradviz.words import Stop, Words
from gradviz.words.numbers import value as written
from gradviz.words.numbers import value_label as short
from gradviz.words.sentences import sentence
from tests.conftest import CHROMIUM, EXAMPLES
from tests.invoked import invoked

pytestmark = pytest.mark.slow  # a browser draws each page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

NOT_WORDS = re.compile(r"\[object |undefined|\bnull\b")  # what JavaScript writes where something was forgotten
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")


class Page:
    """A page as a reader has it, and what went wrong in it."""

    def __init__(self, browser: Any, file: Path, **settings: Any) -> None:
        self.tab = browser.new_page(viewport={"width": 1280, "height": 800}, **settings)
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.tab.on("console", lambda told: self.wrong.append(told.text) if told.type in ("error", "warning") else 0)
        self.tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.tab.on("dialog", lambda dialog: (self.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(file.as_uri())
        self.tab.wait_for_selector("body[data-ready]", timeout=30_000)

    def unroll(self) -> None:
        """Show each step of a loop."""
        if self.tab.get_attribute("#roll", "aria-pressed") == "true":
            self.press("r")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.tab.keyboard.press(key)
        self.settled()

    def settled(self) -> None:
        """Wait until a pass that was asked for is shown."""
        self.tab.wait_for_selector("body:not([data-busy])")

    def text(self, selector: str) -> str:
        return self.tab.inner_text(selector)

    def count(self, selector: str) -> int:
        return self.tab.locator(selector).count()

    def boxes(self) -> dict[str, list[str]]:
        """The lines written in each box, by its id."""
        return self.tab.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#nodes > g')]"
            ".map((g) => [g.dataset.id, [...g.querySelectorAll('text')].map((t) => t.textContent)]))"
        )

    def event(self) -> int:
        """The number of the event that is shown, from 0."""
        return int(re.sub(r"\D", "", self.text("#position").split(" of ")[0])) - 1

    def replayed(self, most: int = 100_000) -> list[dict[str, Any]]:
        """What the page shows now and after each press of the arrow to the right, until there is no next step. In one
        call: three for each step take the browser and this process longer than all that the page does."""
        return self.tab.evaluate(
            """async (most) => {
                const text = (id) => document.getElementById(id)?.innerText;
                const seen = [];
                for (;;) {
                    while (document.body.dataset.busy !== undefined) await new Promise(requestAnimationFrame);
                    seen.push({
                        event: Number(text("position").split(" of ")[0].replace(/\\D/g, "")) - 1,
                        sentence: text("sentence"), facts: text("facts"), value: text("value"), grad: text("grad"),
                        boxes: Object.fromEntries([...document.querySelectorAll("#nodes > g")].map((g) => [
                            g.dataset.id, [...g.querySelectorAll("text")].map((line) => line.textContent)])),
                    });
                    if (document.getElementById("next").disabled || seen.length > most) return seen;
                    const press = { key: "ArrowRight", bubbles: true, cancelable: true };
                    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", press));
                }
            }""",
            most,
        )

    def clicked(self, names: list[str]) -> list[str]:
        """The facts in the panel after a click on each of these boxes."""
        return self.tab.evaluate(
            """(names) => names.map((name) => {
                const box = document.getElementById(`box-${name}`).querySelector(".box");
                box.dispatchEvent(new MouseEvent("click", {bubbles: true, cancelable: true}));
                return document.getElementById("facts").innerText;
            })""",
            names,
        )

    def click_box(self, name: str) -> None:
        """Click a box as a mouse does, wherever it is."""
        self.tab.locator(f'[id="box-{name}"] .box').dispatch_event("click", {"bubbles": True})


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens the page of a trace; when the test is over, nothing may have gone wrong in it."""
    pages: list[Page] = []

    def open_page(trace: Trace | Path, number: int | None = None, whole: bool = False, **settings: Any) -> Page:
        file = tmp_path / f"page{len(pages)}.html"
        if isinstance(trace, Path):
            with open_trace(trace) as recorded:
                write_page(recorded, lambda n: build(recorded, n, whole=whole), number, file)
        else:
            write_page(trace, lambda n: build(trace, n, whole=whole), number, file)
        pages.append(Page(browser, file, **settings))
        return pages[-1]

    yield open_page
    for page in pages:
        assert page.wrong == []
        assert [url for url in page.asked if not url.startswith("file:")] == []
        page.tab.close()


@pytest.fixture
def traced(tmp_path: Path) -> Callable[..., Trace]:
    def trace(program: Callable[[], None], **settings: Any) -> Trace:
        path = tmp_path / "run.gradviz"
        with record(path, **settings):
            program()
        return open_trace(path)

    return trace


# --- programs


def lesson() -> None:
    x = torch.tensor(5.0, requires_grad=True)
    y = x**3
    z = torch.log(y)
    z.backward()


def paths() -> None:
    a = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    frozen = torch.tensor([2.0, 2.0, 2.0])
    b = a * frozen + a.detach()
    c = (b * a).sum()
    c.backward()
    c2 = (a.exp() + a).mean()
    c2.backward()


def in_place() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(3):
        h = w * 2
        h += 1
        h.sum().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad.zero_()


def twice() -> None:
    x = torch.tensor(2.0, requires_grad=True)
    y = x**3
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    g.retain_grad()
    z = g * x
    z.backward()


def training() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(5, 3)
    for _ in range(6):
        optimizer.zero_grad()
        loss = (model(inputs) ** 2).mean()
        loss.backward()
        optimizer.step()


def deep() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(60)))
    model(torch.ones(2, 4)).sum().backward()


PROGRAMS = [lesson, paths, in_place, twice, training]
programs = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


# --- replay


@programs
def test_the_values_shown_at_each_step_are_the_traces(program: Callable, traced: Callable, opened: Callable) -> None:
    with traced(program) as trace:
        last = trace.passes[-1].number
        graph = build(trace, last)
        page = opened(trace, last)
        page.unroll()
        moments, session = Query(trace), Session(trace)
        page.press("Home")
        tensors = [node for node in graph.nodes.values() if node.kind in ("leaf", "tensor") and not node.version]
        later = {node.number for node in graph.nodes.values() if node.version}
        tensors = [node for node in tensors if node.number not in later]
        assert tensors
        replayed = page.replayed()
        for seen in replayed:
            k = seen["event"]
            session.go(k)
            assert seen["sentence"] == sentence(session.stop)
            boxes = seen["boxes"]
            moment = moments.at(k)
            for node in tensors:
                born = trace.born(node.number)
                _, facts, *lines = boxes[node.id]
                assert facts.startswith(("leaf", "requires_grad", "non-leaf"))
                snapshot = moment.value(node.number) if born is not None and born <= k else None
                if snapshot is not None and short(snapshot):
                    assert lines[0].endswith(short(snapshot)[:20]) or lines[0].endswith("…")
                    assert short(snapshot)[:15] in lines[0]
                else:
                    assert "=" not in lines[0]
                    assert "rms" not in lines[0]
                grad = moment.value(moment.grad(node.number))
                if grad is not None:
                    assert short(grad)[:15] in lines[1]
                elif len(lines) > 1:
                    assert lines[1] == ".grad = None"
        assert k == trace.count - 1
        assert len(replayed) == page.tab.evaluate("document.getElementById('slider').max * 1 + 1")


def two_ways() -> None:
    x = torch.tensor(5.0, requires_grad=True)
    cube = x**3
    square = x**2
    z = torch.log(cube) + torch.sqrt(square)
    z.backward()


def test_the_boxes_of_a_small_graph_say_what_a_tensor_is_for_autograd(traced: Callable, opened: Callable) -> None:
    page = opened(traced(two_ways))
    page.press("End")
    said = {name: facts for name, facts, *_ in (lines for lines in page.boxes().values() if len(lines) > 2)}
    assert said["x"] == "leaf · requires_grad"
    assert said["z"] == "requires_grad · root · grad_fn=AddBackward0"


def test_a_box_says_what_a_tensor_is_at_the_event(traced: Callable, opened: Callable) -> None:
    def switched() -> None:
        w = torch.tensor([1.0, 2.0])
        w.requires_grad_()
        (w * 2).sum().backward()

    page = opened(traced(switched))

    def said() -> str:
        return next(lines[1] for lines in page.boxes().values() if lines[0] == "w")

    page.press("Home")
    assert said() == "leaf · requires_grad=False"
    page.press("End")
    assert said() == "leaf · requires_grad"


@pytest.mark.slow
def test_an_earlier_version_of_a_leaf_has_no_gradient_of_the_present(traced: Callable, opened: Callable) -> None:
    def program() -> None:
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(2):
            (w * w).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    page = opened(traced(program), whole=True)
    page.press("End")
    leaves = [lines for lines in page.boxes().values() if lines[0] == "w"]
    assert len(leaves) > 1
    assert [any(line.startswith(".grad") for line in lines) for lines in leaves].count(True) == 1


def test_the_gradients_of_a_small_graph_stay_at_their_edges(traced: Callable, opened: Callable) -> None:
    def gradients() -> list[str]:
        return sorted(page.tab.locator("#labels .grad").all_text_contents())

    page = opened(traced(two_ways))
    page.press("Home")
    assert gradients() == []
    page.press("End")
    assert gradients() == ["0.008", "0.1", "0.6", "1", "1", "1"]


def residual() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.relu_(self.inner(x)) * torch.sigmoid(x)

    block = Block()
    x = torch.ones(2, 4, requires_grad=True)
    for _ in range(3):
        x = block(x)
    (x.sum() + x.detach().mean()).backward()


@pytest.mark.parametrize("program", [two_ways, residual], ids=lambda program: program.__name__)
def test_the_label_of_an_edge_covers_no_box_no_title_and_no_other_label(
    program: Callable, traced: Callable, opened: Callable
) -> None:
    page = opened(traced(program))
    page.press("End")
    labels, covered = page.tab.evaluate(
        "(() => { const labels = [...document.querySelectorAll('#labels text')];"
        " const others = [...document.querySelectorAll('#nodes .box, #titles text'), ...labels];"
        " const of = new Map(others.map((one) => [one, one.getBoundingClientRect()]));"
        " const meet = (l, o) => l.right > o.left + 1 && l.left < o.right - 1"
        "   && l.bottom > o.top + 2 && l.top < o.bottom - 2;"
        " const isCovered = (label) => others.some((one) => one !== label && meet(of.get(label), of.get(one)));"
        " return [labels.length, labels.filter(isCovered).map((label) => label.textContent)]; })()"
    )
    assert labels >= 6
    assert covered == []


@programs
def test_the_panel_shows_a_leaf_in_full_as_the_stepper_writes_it(
    program: Callable, traced: Callable, opened: Callable
) -> None:
    with traced(program) as trace:
        page = opened(trace)
        moments = Query(trace)
        leaf = next(n for n in build(trace).nodes.values() if n.kind == "leaf" and n.requires_grad)
        versions = [n for n in build(trace).nodes.values() if n.number == leaf.number]
        page.press("Home")
        page.click_box(leaf.id)
        for seen in page.replayed()[1:]:
            moment = moments.at(seen["event"])
            version = moments.tensors.version(leaf.number, moment.k)
            if version < leaf.version:
                assert seen["value"] == "not made yet"  # a later version of the leaf is the node
                continue
            if version > leaf.version and len(versions) > 1:
                break  # the node is what the leaf was before
            if moment.value(leaf.number) is not None:
                assert seen["value"] == written(moment.value(leaf.number))
            grad = moment.value(moment.grad(leaf.number))
            assert seen["grad"] == ("None" if grad is None else written(grad))


@needs_chromium
def test_the_panel_says_all_of_a_shape(traced: Callable, opened: Callable) -> None:
    with traced(training) as trace:
        page = opened(trace)
        page.tab.click("table.leaves [title='model.0.weight']")
        assert facts_of(page)["shape"] == "[4, 3]"


def facts_of(page: Page) -> dict[str, str]:
    """The facts in the panel, by their labels."""
    return page.tab.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#facts dt')]"
        ".map((label) => [label.innerText, label.nextElementSibling.innerText]))"
    )


def test_replay_lights_what_runs_and_fills_the_leaves(traced: Callable, opened: Callable) -> None:
    with traced(lesson) as trace:
        page = opened(trace)
        leaf = next(n.id for n in build(trace).nodes.values() if n.name == "x")
        page.press("Home")
        assert page.count("#nodes .unborn") > 4
        assert page.count(f'[id="box-{leaf}"].has-grad') == 0
        assert page.count("#edges .flowed") == 0
        lit = set()
        while not page.tab.is_disabled("#next"):
            page.press("ArrowRight")
            lit.update(page.tab.evaluate("[...document.querySelectorAll('#nodes .now')].map((g) => g.dataset.id)"))
        nodes = build(trace).nodes
        assert {node.id for node in nodes.values() if node.kind in ("op", "grad_fn")} <= lit
        assert page.count("#nodes .unborn") == 0
        assert page.count(f'[id="box-{leaf}"].has-grad') == 1
        assert page.count("#edges .grad.flowed") == page.count("#edges .grad") == 2
        assert page.count("#nodes .grad_fn.ran") == 3


def test_where_events_are_left_out_every_node_that_ran_still_says_so(
    traced: Callable, opened: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran() -> list[str]:
        page = opened(trace, 6)
        page.press("u", "End")
        said.append(page.text("#notes"))
        return page.tab.evaluate(
            "[...document.querySelectorAll('#nodes .grad_fn.ran')].map((g) => g.dataset.id).sort()"
        )

    trace, said = traced(training), []
    every = ran()
    monkeypatch.setattr(views, "MOST_STEPS", 12)
    assert ran() == every
    assert len(every) == 11  # four leaves, seven operations
    assert "replay shows" in said[1]
    assert "replay shows" not in said[0]


def test_unfolding_everything_leaves_something_in_view(traced: Callable, opened: Callable) -> None:
    page = opened(traced(deep))
    for key in ("u", "Shift+U", "u"):
        page.press(key)
        assert page.tab.evaluate(
            "(() => { const { left, right, top, bottom } = document.getElementById('stage').getBoundingClientRect();"
            " return [...document.querySelectorAll('#nodes > g .box')].some((box) => {"
            " const at = box.getBoundingClientRect();"
            " return at.left >= left && at.right <= right && at.top >= top && at.bottom <= bottom; }); })()"
        )


def test_play_runs_to_the_end_and_the_source_follows(traced: Callable, opened: Callable) -> None:
    with traced(lesson) as trace:
        page = opened(trace)
        page.press("Home")
        first = page.text("#source .marked .number")
        page.press("Space")
        page.tab.wait_for_selector("#next:disabled", timeout=30_000)
        assert page.event() == trace.count - 1
        assert page.text("#source .marked .number") != first
        assert "z.backward()" in page.text("#source .marked")


def test_the_title_of_a_frame_says_how_many_blocks_it_stands_for(traced: Callable, opened: Callable) -> None:
    class TransformerEncoderLayer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.second(self.first(x))

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([TransformerEncoderLayer() for _ in range(12)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    with traced(lambda: Encoder()(torch.ones(2, 3)).sum().backward()) as trace:
        titles = opened(trace).tab.locator("#titles text").all_text_contents()
        assert "layers.0 … layers.11 · TransformerEncoderLayer ×12" in titles


def test_unfolding_everything_opens_what_fits_beside_a_group_that_is_too_large(
    traced: Callable, opened: Callable
) -> None:
    def program() -> None:
        rows = [torch.ones(1, 3) * number for number in range(2100)]
        nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))(torch.cat(rows)).sum().backward()

    with traced(program, values="none") as trace:
        page = opened(trace)
        page.press("u")
        assert "more than 6,000 nodes would show" in page.text("#note")
        names = {lines[0] for lines in page.boxes().values()}
        assert {"data", "AccumulateGrad"} < names


def test_the_speed_of_the_replay_can_be_chosen(traced: Callable, opened: Callable) -> None:
    page = opened(traced(lesson))
    page.tab.evaluate("window.setInterval = (act, pause) => (window.pause = pause, 1)")
    pauses = []
    for speed in ("0.25", "1", "4"):
        page.tab.select_option("#speed", speed)
        page.tab.evaluate("document.getElementById('play').click()")
        pauses.append(page.tab.evaluate("window.pause"))
        page.tab.evaluate("document.getElementById('play').click()")
    assert [pause / pauses[1] for pause in pauses] == [4, 1, 0.25]


def test_the_legend_shows_every_kind_of_box_and_line(traced: Callable, opened: Callable) -> None:
    page = opened(traced(lesson))
    page.press("m")
    assert "root: backward() begins here" in page.text("#signs-box")
    assert page.count("#signs-box .box") == 14
    assert page.count("#signs-box .edge") == 9
    kinds = page.tab.evaluate(
        "[...document.querySelectorAll('#nodes > g')].map((g) => [...g.classList].find((c) => "
        "['leaf', 'tensor', 'op', 'grad_fn', 'group'].includes(c)))"
    )
    assert all(page.count(f"#signs-box .{kind} .box") for kind in kinds)
    page.press("Escape")
    assert page.count("#signs-box[open]") == 0


def test_a_small_graph_can_be_seen_as_a_textbook_draws_it(traced: Callable, opened: Callable) -> None:
    page = opened(traced(lesson))
    assert page.count("#book[hidden]") == 1
    page.press("k")
    assert page.count("#book[hidden]") == 0
    size = page.tab.evaluate("(async () => { const i = document.getElementById('book-image'); await i.decode();"
                             " return [i.naturalWidth, i.naturalHeight]; })()")  # fmt: skip
    assert min(size) > 50
    page.tab.click("#book-toggle")
    assert page.count("#book[hidden]") == 1


def shown_in_book(page: Any) -> list[str]:
    """The lines that the textbook's picture shows, each with its kind."""
    source = page.tab.get_attribute("#book-image", "src")
    drawing = ElementTree.fromstring(unquote(source.partition(",")[2]))
    lines = drawing.iterfind(".//{*}g[@class]//{*}text[@class]")
    return [f"{line.get('class')}: {line.text.strip()}" for line in lines if line.get("visibility") != "hidden"]


def test_a_textbooks_picture_shows_what_is_there_at_the_step(traced: Callable, opened: Callable) -> None:
    page = opened(traced(lesson))
    page.press("k")
    count = int(page.tab.evaluate("document.getElementById('slider').max")) + 1
    shown = []
    for step in range(count):
        page.tab.fill("#slider", str(step))
        shown.append(shown_in_book(page))
        if "backward" not in page.text("#position"):
            assert not any(text.startswith("grad: ") for text in shown[-1])
    assert [len(one) for one in shown] == sorted(len(one) for one in shown)  # nothing goes away
    assert "grad: ∂z/∂x = 0.6" in shown[-1]
    made = next(at for at, texts in enumerate(shown) if any(text.startswith("value: z = ") for text in texts))
    assert 0 < made < len(shown) - 1


def test_a_large_graph_has_no_picture_of_a_textbook(traced: Callable, opened: Callable) -> None:
    page = opened(traced(deep))
    assert page.count("#book-toggle[hidden]") == 1
    page.press("k")
    assert "too many operations" in page.text("#note")


def test_the_slider_and_the_keys_lead_to_the_same_state(traced: Callable, opened: Callable) -> None:
    with traced(paths) as trace:
        page = opened(trace)
        page.press("Home", *["ArrowRight"] * 7)
        by_keys = page.boxes(), page.text("#sentence")
        page.press("End")
        page.tab.fill("#slider", "7")
        assert (page.boxes(), page.text("#sentence")) == by_keys
        page.press("End", "Home")
        page.tab.locator("#next").click(click_count=7, delay=5)
        assert (page.boxes(), page.text("#sentence")) == by_keys


# --- search, folding, passes


@pytest.mark.parametrize("wanted", ["frozen", "mul", "MulBackward0", "[3]", "exp"])
def test_search_finds_by_name_op_and_shape(wanted: str, traced: Callable, opened: Callable) -> None:
    with traced(paths) as trace:
        page = opened(trace)
        page.press("/")
        page.tab.keyboard.type(wanted)
        assert page.count("#found [role=option]") > 0
        assert wanted.lower() in page.tab.inner_text("#found").lower()
        page.press("Enter")
        assert page.count(".node.chosen") == 1
        assert wanted in page.text("#facts").replace(" ", "") or wanted == "[3]"


def test_search_finds_by_place_and_says_where_there_is_nothing(traced: Callable, opened: Callable) -> None:
    with traced(paths) as trace:
        page = opened(trace)
        node = next(n for n in build(trace).nodes.values() if n.op == "exp" and n.kind == "op")
        page.press("/")
        page.tab.keyboard.type(f"test_page.py:{node.line}")
        found = page.text("#found")
        assert "exp" in found
        page.tab.fill("#search", "no such thing")
        assert page.count("#found [role=option]") == 0
        assert "nothing found" in page.text("#found")
        page.press("Escape")
        assert not page.tab.is_visible("#found")


def long_names() -> None:
    encoder = nn.ModuleDict({"attention_of_pictures": nn.Linear(3, 40), "projection_of_values": nn.Linear(40, 3)})
    encoder["projection_of_values"](encoder["attention_of_pictures"](torch.ones(2, 3))).sum().backward()


def test_each_result_of_a_search_says_all_about_it(traced: Callable, opened: Callable) -> None:
    with traced(long_names) as trace:
        page = opened(trace)
        page.press("/")
        page.tab.keyboard.type("weight")
        cut = "[...document.querySelectorAll('#found b, #found span')].filter((e) => e.scrollWidth > e.clientWidth)"
        assert page.tab.evaluate(f"{cut}.map((e) => e.textContent)") == []
        rows = page.tab.locator("#found [role=option]")
        heights = [box.bounding_box()["height"] for box in rows.all()]
        assert max(heights) == min(heights)
        texts = rows.all_text_contents()
        assert "encoder.attention_of_pictures.weightleaf · [40, 3]" in texts[0]
        assert "AccumulateGradgrad_fn node of encoder.attention_of_pictures.weight" in " ".join(texts)


def test_no_edge_leads_into_a_closed_box_of_data(traced: Callable, opened: Callable) -> None:
    def rollout() -> None:
        policy, state, states = nn.Linear(2, 2), torch.ones(1, 2), []
        for _ in range(10):
            with torch.no_grad():
                state = state * 0.5 + 0.1 * policy(state).max(1).indices.view(1, 1)
            states.append(state)
        policy(torch.cat(states)).max(1).values.sum().backward()

    with traced(rollout) as trace:
        page = opened(trace)
        (data,) = [name for name, lines in page.boxes().items() if lines[0] == "data"]
        assert page.count(f'.edge[data-source="{data}"]') == 1
        assert page.count(f'.edge[data-target="{data}"]') == 0


def test_groups_unfold_and_fold_in_place(traced: Callable, opened: Callable) -> None:
    with traced(deep) as trace:
        page = opened(trace)
        page.unroll()
        closed = page.count("#nodes .group")
        shown = page.count("#nodes .node")
        assert closed > 0
        group = page.tab.evaluate("document.querySelector('#nodes .group').dataset.id")
        name = page.tab.text_content(f'[id="box-{group}"] .name')
        page.click_box(group)
        page.press("Enter")
        assert page.count(f'[id="box-{group}"]') == 0
        assert page.count(f'.frame[data-id="{group}"]') == 1
        assert page.tab.text_content(f'#titles [data-id="{group}"]') == name
        assert page.count("#nodes .node") > shown
        page.tab.locator(f'.frame[data-id="{group}"] .sign').dispatch_event("click", {"bubbles": True})
        assert page.count(f'[id="box-{group}"]') == 1
        assert page.count("#nodes .node") == shown
        page.press("u")
        whole = page.count("#nodes .node")
        assert whole == len(build(trace).nodes)
        page.press("Shift+U")
        assert page.count("#nodes .node") < shown


def test_loops_are_rolled_and_unrolled_by_a_key(traced: Callable, opened: Callable) -> None:
    def recurrent() -> None:
        cell = nn.GRUCell(3, 4)
        h = torch.zeros(1, 4)
        for _ in range(10):
            h = cell(torch.ones(1, 3), h)
        h.sum().backward()

    with traced(recurrent) as trace:
        page = opened(trace)
        assert page.tab.get_attribute("#roll", "aria-pressed") == "true"
        (cell,) = [lines for lines in page.boxes().values() if lines[0] == "cell · GRUCell ×10"]
        assert cell[1:3] == ["[1, 3], [1, 4] → [1, 4]", "4 parameters, 108 elements"]
        assert cell[3].startswith(".grad norm ")
        page.press("Home")
        assert [lines[3] for lines in page.boxes().values() if lines[0] == "cell · GRUCell ×10"] == [".grad = None"]
        page.press("r")
        assert page.tab.get_attribute("#roll", "aria-pressed") == "false"
        assert not any(lines[0] == "cell · GRUCell ×10" for lines in page.boxes().values())


def test_boxes_lie_apart_and_inside_their_frames(traced: Callable, opened: Callable) -> None:
    with traced(deep) as trace:
        page = opened(trace)
        page.press("u")
        rects = page.tab.evaluate(
            "[...document.querySelectorAll('#nodes > g')].map((g) => { const [x, y] = "
            "g.getAttribute('transform').match(/-?[0-9.]+/g).map(Number); const r = g.querySelector('.box');"
            "return [x, y, x + r.width.baseVal.value, y + r.height.baseVal.value] })"
        )
        rects.sort(key=lambda rect: rect[1])
        for i, (x, y, right, bottom) in enumerate(rects):
            for x2, y2, right2, bottom2 in rects[i + 1 :]:
                if y2 >= bottom:
                    break
                assert x2 >= right - 0.2 or right2 <= x + 0.2 or bottom2 <= y, "two boxes overlap"


def test_what_is_found_in_a_folded_group_is_unfolded(traced: Callable, opened: Callable) -> None:
    with traced(deep) as trace:
        page = opened(trace)
        page.press("/")
        page.tab.keyboard.type("59.0.weight")
        page.press("Enter")
        chosen = page.tab.evaluate("document.querySelector('.node.chosen text').textContent")
        assert chosen == "model.59.0.weight"
        assert page.tab.evaluate("getComputedStyle(document.querySelector('.node.chosen')).opacity") == "1"


def test_a_training_run_has_a_chart_that_leads_to_each_pass(traced: Callable, opened: Callable) -> None:
    with traced(training) as trace:
        page = opened(trace)
        assert page.tab.locator("#pass option").all_inner_texts()[0].startswith("pass 1 of 6")
        assert page.tab.locator("#plot text[text-anchor=middle]").all_text_contents() == ["2", "3", "4", "5"]
        assert page.count("#plot .series") == 4
        assert page.count("#plot .series circle") == 4 * 6
        box = page.tab.locator("#plot").bounding_box()
        page.tab.mouse.click(box["x"] + 50, box["y"] + 40)
        page.settled()
        assert page.tab.eval_on_selector("#pass", "(e) => e.selectedOptions[0].textContent").startswith("pass 1 of")
        page.press("]", "]")
        assert page.tab.eval_on_selector("#pass", "(e) => e.selectedOptions[0].textContent").startswith("pass 3 of")
        assert "backward pass 3 ends" in page.text("#sentence")
        run = trace.passes[2]
        moments = Query(trace)
        weight = next(t for t, name in trace.parameters.items() if name == "model.0.weight")
        snapshot = moments.at(run.last).value(moments.at(run.last).grad(weight))
        norm = snapshot.stats.rms * (3 * 4) ** 0.5
        told = dict(
            page.tab.evaluate(
                "[...document.querySelectorAll('#legend button')]"
                ".map((b) => [b.children[1].textContent, b.lastChild.textContent])"
            )
        )
        assert float(told["model.0.weight"]) == pytest.approx(norm, rel=1e-3)


def test_the_next_pass_of_a_loop_keeps_what_is_open_and_where_it_is(traced: Callable, opened: Callable) -> None:
    with traced(training) as trace:
        page = opened(trace, 1)
        page.press("Shift+U", "a", "s")
        shown, place = first_lines(page), eye_of(page)
        assert "model · Sequential" in shown
        page.press("]")
        assert page.text("#position").endswith("backward pass 2 of 6")
        assert first_lines(page) == shown
        assert eye_of(page) == place


def test_the_next_pass_is_in_view_where_it_has_another_structure(traced: Callable, opened: Callable) -> None:
    def two_networks() -> None:
        large = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(9)))
        large(torch.ones(2, 4)).sum().backward()
        nn.Linear(4, 1)(torch.ones(2, 4)).sum().backward()

    with traced(two_networks) as trace:
        page = opened(trace, 1)
        page.press(*"ssssssssss")
        page.press("]")
        stage = page.tab.locator("#stage").bounding_box()
        boxes = [box.bounding_box() for box in page.tab.locator("#nodes > g .box").all()]
        assert [box for box in boxes if stage["y"] < box["y"] < stage["y"] + stage["height"]]


def eye_of(page: Page) -> str | None:
    """Where the picture is, and its scale."""
    return page.tab.get_attribute("#world", "transform")


def first_lines(page: Page) -> list[str]:
    """The first line in each box."""
    return sorted(lines[0] for lines in page.boxes().values())


def test_a_page_without_values_says_that_gradients_came_and_no_number(traced: Callable, opened: Callable) -> None:
    with traced(training, values="none") as trace:
        page = opened(trace, 1)
        flowed = page.count("#edges .edge.grad.flowed")
        assert flowed == page.count("#edges .edge.grad") > 3
        weight = next(lines for lines in page.boxes().values() if lines[0] == "model.0.weight")
        assert weight[-1] == ".grad"
        page.press("Shift+U")
        model = next(lines for lines in page.boxes().values() if lines[0] == "model · Sequential")
        assert model[-1] == ".grad"
        assert not page.tab.is_visible("#chart, #chart-toggle")


def test_two_keys_pressed_at_once_go_two_passes_on(traced: Callable, opened: Callable) -> None:
    with traced(training) as trace:
        page = opened(trace)
        page.tab.select_option("#pass", label=page.tab.locator("#pass option").all_inner_texts()[0])
        page.settled()
        page.tab.evaluate(
            "for (const _ of [1, 2]) document.body.dispatchEvent("
            "new KeyboardEvent('keydown', { key: ']', bubbles: true }))"
        )
        page.settled()
        assert "backward pass 3 ends" in page.text("#sentence")


def adversaries() -> None:
    torch.manual_seed(0)
    G = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())
    D = torch.nn.Sequential(torch.nn.Linear(3, 1))
    for _ in range(2):
        fake = G(torch.randn(4, 2))
        D(fake.detach()).mean().backward()
        (D(fake) ** 2).mean().backward()


def test_the_curves_of_two_networks_stay_apart_in_the_chart(traced: Callable, opened: Callable) -> None:
    with traced(adversaries) as trace:
        page = opened(trace)
        names = ["G.0.weight", "G.0.bias", "D.0.weight", "D.0.bias"]
        legend = page.tab.locator("#legend button").evaluate_all("(all) => all.map((b) => b.children[1].textContent)")
        assert sorted(legend) == sorted(names)
        points = page.tab.locator("#plot .series").evaluate_all(
            "(all) => all.map((one) => one.querySelectorAll('circle').length)"
        )
        assert dict(zip(legend, points, strict=True)) == dict(zip(names, [2, 2, 4, 4], strict=True))
        assert [run.number for run in trace.passes] == [1, 2, 3, 4]


def test_a_chart_has_colours_by_name_a_filter_and_a_running_mean(traced: Callable, opened: Callable) -> None:
    with traced(adversaries) as trace:
        page = opened(trace)
    hue = "all => all.map((one) => [one.children[1].textContent, one.style.getPropertyValue('--hue')])"
    hues = dict(page.tab.locator("#legend button").evaluate_all(hue))
    lines = page.tab.locator("#plot .series").evaluate_all(
        "all => all.map((one) => one.style.getPropertyValue('--hue'))"
    )
    assert lines == [*hues.values()]
    assert len({*lines}) == 4

    def only_critic() -> None:
        w = torch.ones(2, requires_grad=True)
        D = torch.nn.Sequential(torch.nn.Linear(2, 1))
        for _ in range(2):
            D(w).sum().backward()

    with traced(only_critic) as trace:
        other = opened(trace)
    alone = dict(other.tab.locator("#legend button").evaluate_all(hue))
    assert alone["D.0.weight"] == hues["D.0.weight"]  # the same in each run
    at = page.event()
    page.tab.focus("#chart-filter")
    page.press("g", ".", "0")  # no keys of the page
    assert page.event() == at
    assert page.tab.locator("#legend button:visible").count() == 2
    assert page.count("#plot .series.off") == 2
    page.tab.fill("#chart-filter", "")
    before = page.tab.locator("#plot .series path").first.get_attribute("d")
    page.tab.select_option("#chart-mean", "5")
    assert page.tab.locator("#plot .series path").first.get_attribute("d") != before


def test_of_very_many_passes_the_page_says_which_it_holds(
    traced: Callable, opened: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with traced(training) as trace:
        assert "passes are in this page" not in opened(trace).text("body")
        monkeypatch.setattr(page_of, "MOST_PASSES", 4)
        page = opened(trace)
        assert page.count("#pass option") == 4
        numbers = [text.split()[1] for text in page.tab.locator("#pass option").all_inner_texts()]
        assert {numbers[0], numbers[-1]} == {"1", "6"}
        assert f"4 of 6 passes are in this page: {', '.join(numbers)}" in page.text("#notes")


# --- keyboard, themes, sizes


def long_chain() -> None:
    x = torch.tensor([1.0], requires_grad=True)
    y = x
    for _ in range(30):
        y = y.exp().log()
    y.sum().backward()


def test_the_overview_of_a_large_picture_leads_to_its_parts(traced: Callable, opened: Callable) -> None:
    page = opened(traced(long_chain), 1)
    page.unroll()
    page.press("u")
    root = page.tab.locator("#overview").bounding_box()
    assert page.tab.is_visible("#overview")
    assert root is not None
    before = page.tab.evaluate("document.querySelector('#overview .seen').getAttribute('y')")
    page.tab.mouse.click(root["x"] + root["width"] / 2, root["y"] + root["height"] - 4)
    assert float(page.tab.evaluate("document.querySelector('#overview .seen').getAttribute('y')")) > float(before) + 50
    page.press("0")
    assert not page.tab.is_visible("#overview")


def goes_wrong() -> None:
    w = torch.tensor([1.0, 4.0], requires_grad=True)
    unused = torch.tensor(3.0, requires_grad=True)
    y = (w * unused.detach()).sum()
    y.backward()
    w.grad = None
    (torch.sqrt(w - 1) * torch.tensor([0.0, 1.0])).sum().backward()
    (w * 2).sum().backward()
    z = w.exp()
    z.sum().backward()
    with contextlib.suppress(RuntimeError):
        z.sum().backward()


def test_buttons_and_keys_lead_to_the_first_nan_and_the_first_error(traced: Callable, opened: Callable) -> None:
    trace = traced(goes_wrong)
    page = opened(trace, 1)
    assert page.text("#first-nan") == "First NaN"
    page.press("n")
    first = next(k for k in range(trace.count) if "nan" in sentence(Stop(Words(trace), k)))
    assert page.event() == first
    assert page.text("#position").endswith("pass 2 of 5")
    assert "0 × inf" in page.text(".why") or "NaN in" in page.text(".why")
    page.tab.click("#first-error")
    page.settled()
    assert page.event() == trace.errors[0].event
    assert "give that pass retain_graph=True" in page.text(".why")


def masked() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        (w * 2).masked_fill(torch.tensor([True, False]), float("-inf")).softmax(0)[1].backward()


def test_no_button_leads_to_the_infinity_of_a_mask_but_the_key_does(traced: Callable, opened: Callable) -> None:
    trace = traced(masked)
    page = opened(trace, 2)
    assert not page.tab.is_visible("#first-nan")
    page.press("n")
    assert trace.event(page.event()).op == "masked_fill"


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_the_replay_ends_with_the_error_that_ended_the_script(engine: str, opened: Callable, tmp_path: Path) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    script = tmp_path / "cut.py"
    script.write_text("import torch\nx = torch.tensor(2.0, requires_grad=True)\ny = x.detach() * 3.0\ny.backward()\n")
    run(Target(str(script), False, ()), tmp_path / "cut.gradviz", engine=engine)
    page = opened(tmp_path / "cut.gradviz")
    with open_trace(tmp_path / "cut.gradviz") as trace:
        last = trace.count - 1
    page.press("e")
    assert page.event() == last
    assert "does not require grad" in page.text("#sentence")
    assert "x.detach()" in page.text(".why")


def test_a_run_without_a_nan_says_so(traced: Callable, opened: Callable) -> None:
    page = opened(traced(lesson))
    assert not page.tab.is_visible("#first-nan")
    assert not page.tab.is_visible("#first-error")
    page.press("n")
    assert page.text("#note") == "no NaN and no infinity in this run"
    page.press("e")
    assert page.text("#note") == "no error in this run"


def test_the_panel_says_why_a_gradient_is_none(traced: Callable, opened: Callable) -> None:
    trace = traced(goes_wrong)
    page = opened(trace, 1)
    unused = next(n for n in build(trace, 1).nodes.values() if n.name == "unused")
    page.click_box(unused.id)
    told = page.text("#facts .why")
    assert "the path from it to y is cut at event" in told
    assert "detach() cut it off from the graph" in told


def test_the_panel_says_why_a_gradient_is_zero(traced: Callable, opened: Callable) -> None:
    def dead() -> None:
        x = torch.tensor([-1.0, -2.0], requires_grad=True)
        torch.relu(x * 2).sum().backward()

    trace = traced(dead)
    page = opened(trace)
    page.click_box(next(n.id for n in build(trace).nodes.values() if n.name == "x"))
    assert "ReluBackward0 of torch.relu(x * 2)" in page.text("#facts .why")


def test_the_address_restores_the_view(traced: Callable, opened: Callable) -> None:
    page = opened(traced(training), 1)
    page.press("]", "Home", "ArrowRight", "ArrowRight", "t")
    chosen = page.tab.evaluate("document.querySelector('#nodes > g').dataset.id")
    page.click_box(chosen)
    page.tab.wait_for_url(re.compile("select="))
    state = (
        "[document.getElementById('position').textContent, document.getElementById('pass').value, "
        "getComputedStyle(document.body).backgroundColor, document.querySelector('#facts h2').textContent]"
    )
    before, address = page.tab.evaluate(state), page.tab.url
    assert "pass=2&event=" in address
    assert "theme=dark" in address
    page.tab.goto("about:blank")
    page.tab.goto(address)
    page.tab.wait_for_selector("body[data-ready]")
    assert page.tab.evaluate(state) == before
    page.tab.evaluate("location.hash = '#pass=1&event=999999&open=<b>,__proto__&select=constructor&theme=x'")
    page.tab.locator("#position", has_text="pass 1").wait_for()


def test_an_address_brings_its_event_into_view(traced: Callable, opened: Callable) -> None:
    def layers() -> None:
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))
        for _ in range(2):
            model(torch.ones(3, 2)).sum().backward()

    with traced(layers) as trace:
        page = opened(trace, 1)
        event = int(trace.table(Kind.ACCUMULATED).events[0])
    page.press("u", "End")
    page.tab.wait_for_url(re.compile("open="))
    address = re.sub("event=[0-9]+", f"event={event + 1}", page.tab.url)
    page.tab.goto("about:blank")
    page.tab.goto(address)
    page.tab.wait_for_selector("body[data-ready]")
    box = page.tab.locator("#nodes .now").first.bounding_box()
    stage = page.tab.locator("#stage").bounding_box()
    assert stage["y"] <= box["y"] <= stage["y"] + stage["height"] - box["height"]


def test_folds_are_part_of_the_address(traced: Callable, opened: Callable) -> None:
    page = opened(traced(deep), whole=True)
    page.press("u")
    page.tab.wait_for_url(re.compile("open="))
    boxes, address = page.boxes(), page.tab.url
    page.tab.goto("about:blank")
    page.tab.goto(address)
    page.tab.wait_for_selector("body[data-ready]")
    assert page.boxes() == boxes


def test_everything_can_be_done_by_keyboard(traced: Callable, opened: Callable) -> None:
    with traced(lesson) as trace:
        page = opened(trace)
        page.press("ArrowDown")
        first = page.text("#facts h2")
        page.press("ArrowDown")
        assert page.text("#facts h2") != first
        page.press("Escape")
        assert page.text("#facts h2") == "At this event"
        page.press("?")
        assert page.tab.is_visible("#help-box")
        page.press("Escape")
        assert not page.tab.is_visible("#help-box")
        seen = set()
        for _ in range(30):
            page.press("Tab")
            seen.add(page.tab.evaluate("document.activeElement.id"))
        assert {"search", "stage", "slider", "play", "source", "facts"} <= seen


def test_dark_is_dark_and_light_is_light(traced: Callable, opened: Callable) -> None:
    def ground(theme: str) -> int:
        page = opened(trace, color_scheme=theme)
        colour = page.tab.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    with traced(lesson) as trace:
        assert ground("light") > 700
        assert ground("dark") < 150


def test_a_run_without_a_pass_and_one_that_failed_have_a_page(traced: Callable, opened: Callable) -> None:
    def forward() -> None:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        (x * 2).sum()

    def fails() -> None:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = x.exp()
        y += 1
        with pytest.raises(RuntimeError):
            y.sum().backward()

    with traced(forward) as trace:
        page = opened(trace)
        assert page.event() == trace.count - 1
        assert page.count("#nodes .grad_fn.ran") == 0
    with traced(fails) as trace:
        page = opened(trace)
        assert "modified by an inplace operation" in page.text("#notes")
        assert page.count("#nodes .grad_fn.error") == 1


# --- strangers

HOSTILE = [
    "<script>window.harmed = 1</script>",
    "</script><script>window.harmed = 1</script>",
    '"><img src=x onerror="window.harmed = 1">',
    "]]><svg/onload=window.harmed=1>",
    "<!--<script>",
    "\u202eevil\u2066",
    "a\x00b\x1b[31m\u2028",
    "javascript:window.harmed=1",
    "__proto__",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_trace_executes_nothing_and_is_shown_as_text(
    name: str, tmp_path: Path, opened: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "hostile.py"
    program.write_text(
        f"import gradviz.engine as torch\nx = torch.tensor(2.0, requires_grad=True)\ny = x * x  # {name!a}\n"
    )
    trace = tmp_path / "hostile.gradviz"
    with record(trace, meta={"script": name}):
        layer = type(name.replace("\x00", "") or "x", (nn.Module,), {"forward": lambda self, x: (x * self.w).sum()})()
        layer.w = nn.Parameter(torch.tensor([1.0, 2.0]))
        layer._parameters[name.replace(".", "") or "x"] = layer.w
        layer(torch.tensor([1.0, 2.0])).backward()
    source = compile(program.read_text() + f"{name!r}\ny.backward()\n", name.replace("\x00", "") + ".py", "exec")
    other = tmp_path / "other.gradviz"
    with record(other, meta={"script": name}):
        exec(source, {})
    for path in (trace, other):
        page = opened(path)
        page.press("Home", *["ArrowRight"] * 20, "k", "k")
        page.press("ArrowDown", "ArrowDown", "/")
        page.tab.keyboard.insert_text(name)
        assert page.tab.evaluate("window.harmed") is None
        assert page.count("img:not(#book-image), iframe, object, embed, a, form[action]") == 0
        assert page.count("script") == page.count('script[type^="application/"]') + 1
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", page.text("body"))


def test_a_hostile_name_is_data_in_the_file(tmp_path: Path, traced: Callable) -> None:
    with traced(lesson) as trace:
        trace.meta["script"] = "</script><script>alert(1)</script>"
        write_page(trace, lambda n: build(trace, n), None, tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    assert "<script>alert" not in text
    assert text.count("</script>") == text.count("<script")
    assert "default-src 'none'" in text
    own = re.sub(r'<script type="application/[a-z-]+".*?</script>', "", text, flags=re.DOTALL)
    own = own.replace(page_of.libraries(), "")
    assert set(re.findall(r"\w+://[^\s\"']*", own)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"@import|url\((?!#)|\bsrc=|\bhref=", own)


# --- the whole set


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_page_of_every_example_replays_to_its_end(example: Path, tmp_path: Path, opened: Callable) -> None:
    path = tmp_path / "run.gradviz"
    run(Target(str(example), False, ()), path)
    with open_trace(path) as trace:
        page = opened(path, trace.passes[-1].number)
    page.press("Home")
    last = int(page.tab.evaluate("document.getElementById('slider').max"))
    replayed = page.replayed(60)
    assert len(replayed) > min(last, 60)
    page.press("End")
    for facts in [*(seen["facts"] for seen in replayed), *page.clicked([*page.boxes()][:40])]:
        assert not NOT_WORDS.search(facts)
    assert page.tab.input_value("#slider") == str(last)
    assert page.tab.is_disabled("#next")
    with open_trace(path) as trace:
        shown = page.event()
        assert shown == trace.count - 1


# --- the file


def test_a_tensor_at_hand_has_a_page(tmp_path: Path, browser: Any) -> None:
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    drawn = gradviz.draw((weight * weight).sum())
    drawn.save(tmp_path / "live.html")
    assert (tmp_path / "live.html").read_text() == drawn.html()
    page = Page(browser, tmp_path / "live.html")
    assert "weight" in str(page.boxes())
    frame = drawn.html()._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts"')
    (tmp_path / "notebook.html").write_text(f"<!doctype html><meta charset=utf-8>{frame}")
    page.tab.goto((tmp_path / "notebook.html").as_uri())
    page.tab.frame_locator("iframe").locator("body[data-ready]").wait_for()
    assert page.wrong == []
    page.tab.close()


def test_the_page_of_a_notebook_is_the_page_of_the_command(tmp_path: Path, traced: Callable) -> None:
    def stale() -> None:
        w = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(4):
            (w * w).sum().backward()
            optimizer.step()

    with traced(stale) as trace:
        path = trace.path
    done = invoked(["graph", str(path), "-o", str(tmp_path / "run.html")])
    assert done.exit_code == 0
    page = gradviz.show(path)
    assert "stale-gradient" in page
    assert page == (tmp_path / "run.html").read_text()


def test_a_graph_alone_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(DrawError, match="a page needs a trace"):
        save(Graph(), tmp_path / "x.html")


def test_a_page_that_cannot_be_written_gets_one_clear_line(tmp_path: Path, traced: Callable) -> None:
    (tmp_path / "x.html").mkdir()
    with traced(lesson) as trace, pytest.raises(DrawError, match="cannot write"):
        write_page(trace, lambda n: build(trace, n), None, tmp_path / "x.html")


@needs_chromium
@pytest.mark.parametrize("width", [600, 800, 1000, 1280])
def test_a_page_is_as_wide_as_its_window_or_frame(traced: Callable, opened: Callable, width: int) -> None:
    """A cell of a notebook is some 800 points wide."""

    def steps() -> None:
        w = torch.tensor([1.0, -1.0], requires_grad=True)
        for _ in range(2):
            w.log().sum().backward()

    with traced(steps) as trace:
        page = opened(trace)
    page.tab.set_viewport_size({"width": width, "height": 640})
    assert page.tab.is_visible("#first-nan")
    rights = page.tab.evaluate(
        "[document.body, ...document.querySelectorAll('header, main, #facts, #chart, .bar, .tools button')]"
        ".filter((part) => part.checkVisibility()).map((part) => part.getBoundingClientRect().right)"
    )
    assert len(rights) > 10
    assert max(rights) <= width
    assert page.tab.evaluate("document.documentElement.scrollWidth") == width


@needs_chromium
def test_in_a_small_frame_other_values_hide_neither_the_source_nor_the_facts(
    traced: Callable, opened: Callable
) -> None:
    """A cell of marimo is some 690 points wide."""
    with traced(training) as trace:
        page = opened(trace)
    page.tab.set_viewport_size({"width": 690, "height": 640})
    page.tab.reload()
    page.tab.locator("body[data-ready]").wait_for()
    assert page.tab.is_visible("#tried summary")
    chart = page.tab.locator("#chart").bounding_box()
    for part in (".source", "#facts"):
        box = page.tab.locator(part).bounding_box()
        assert box["height"] > 80
        assert box["y"] + box["height"] <= chart["y"] + 1


@needs_chromium
def test_a_pass_too_large_for_a_page_has_its_blocks_closed(
    traced: Callable, opened: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps() -> None:
        model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(60)))
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()

    monkeypatch.setattr(page_of, "MOST_NODES", 100)
    with traced(steps) as trace:
        count = len(build(trace, 1).nodes)
        page = opened(trace, 1)
    assert f"too large for a page ({count:,} nodes): its blocks are closed" in page.text("#notes")
    assert "1 of 2 passes are in this page" in page.text("#notes")
    boxes = page.boxes()
    assert 1 < len(boxes) < 60
    name = next(name for name, lines in boxes.items() if "Linear" in lines[0])
    page.click_box(name)
    assert "group" in page.text("#facts")
    page.press("Home", "ArrowRight", "End")
    page.tab.fill("#search", "model")
    assert "group" in page.text("#found")


@needs_chromium
def test_a_search_finds_a_box_of_data(traced: Callable, opened: Callable) -> None:
    def steps() -> None:
        points = torch.zeros(50, 2)
        for number in range(50):
            points[number] = torch.rand(2) * 2 - 1
        nn.Sequential(*(nn.Linear(2, 2) for _ in range(6)))(points).sum().backward()

    with traced(steps) as trace:
        page = opened(trace)
    page.tab.fill("#search", "data")
    assert "preparation of data" in page.text("#found")


@needs_chromium
def test_of_very_many_gradients_on_their_way_only_the_number_is_told(traced: Callable, opened: Callable) -> None:
    def shared() -> None:
        x = torch.tensor(2.0, requires_grad=True)
        y = x
        for _ in range(30):
            y = y * x
        y.backward()

    page = opened(traced(shared))
    page.press("b")
    told = []
    for _ in range(60):
        told.append(page.text("#facts .rows"))
        page.press("ArrowRight")
    assert any("of 31 paths at AccumulateGrad of x" in " ".join(text.split()) for text in told)
    assert any("21 gradients, each at the node that will take it" in text for text in told)
    assert max(map(len, told)) < 800


class Tuned(nn.Module):
    """A frozen layer and others that learn, on inputs with positions."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.frozen.requires_grad_(False)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(12)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(4).float().exp().cos()
        return self.layers(self.frozen(x) + positions)


@needs_chromium
def test_a_page_tells_frozen_modules_and_what_records_no_graph(traced: Callable, opened: Callable) -> None:
    model = Tuned()
    page = opened(traced(lambda: model(torch.ones(2, 4)).sum().backward()))
    told = page.boxes().values()
    assert [lines[0] for lines in told if "frozen" in lines] in (["0 · Linear"], ["frozen · Sequential"])
    passive = page.tab.locator("#nodes .group.place.passive").all_text_contents()
    assert sorted(text.split()[0] for text in passive) == ["add", "cos", "exp", "to"]
    assert page.count("#nodes .group.place:not(.passive)") > 0


@needs_chromium
def test_the_notes_of_a_page_lie_over_no_box(traced: Callable, opened: Callable) -> None:
    page = opened(traced(training))
    notes = page.tab.locator("#notes").bounding_box()
    boxes = [box.bounding_box() for box in page.tab.locator("#nodes > g .box").all()]
    assert "outside this pass" in page.text("#notes")
    assert min(box["y"] for box in boxes) >= notes["y"] + notes["height"]


def test_the_parts_of_a_page_are_in_the_package() -> None:
    here = Path(page_of.__file__).parent
    around_a_page = {"widget.js"}  # of a notebook
    computing = {f"{name}.js" for name in (*page_of.COMPUTING, page_of.TRYING)}
    assert {f"{name}.js" for name in page_of.SCRIPTS} | computing | around_a_page == {
        path.name for path in here.glob("*.js")
    }
    vendored = {path.name for path in (here / "vendor").glob("*.js")}
    assert {f"{name}.min.js" for name in page_of.LIBRARIES} == vendored


STALE_NET = """\
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(3):
    loss = net(torch.ones(2, 3)).pow(2).mean()
    loss.backward()
    optimizer.step()
"""


@needs_chromium
def test_a_list_of_findings_leads_to_each(gradviz_here: Callable[..., Any], browser: Any, tmp_path: Path) -> None:
    (tmp_path / "stale.py").write_text(STALE_NET)
    gradviz_here("trace", "--engine", "numpy", "stale.py")
    assert gradviz_here("graph", "stale.gradviz", "-o", "stale.html").returncode == 0
    page = Page(browser, tmp_path / "stale.html")
    assert page.text("#findings") == "1 finding"
    page.press("Home")
    page.tab.select_option("#pass", label=page.tab.locator("#pass option").last.inner_text())
    page.settled()
    page.press("f")
    row = page.text("#findings-list li")
    assert row.startswith("1 error stale-gradient")
    assert "optimizer.zero_grad()" in row
    page.tab.click("#findings-list button")
    page.settled()
    assert page.tab.locator("#findings-list").is_hidden()
    assert page.text("#pass option:checked").startswith("pass 2 of 3")
    assert page.count(".node.chosen.finding") == 1
    assert facts_of(page)["gradviz check"] == "finding 1: stale-gradient"
    page.press("f", "Escape")
    assert page.tab.locator("#findings-list").is_hidden()
    assert page.count(".node.chosen") == 1  # Escape has closed the list alone
    assert page.wrong == []
    page.tab.close()


@needs_chromium
def test_the_head_of_a_page_with_findings_is_one_row(
    gradviz_here: Callable[..., Any], browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "network_of_today.py").write_text(STALE_NET)
    gradviz_here("trace", "--engine", "numpy", "network_of_today.py")
    gradviz_here("graph", "network_of_today.gradviz", "-o", "stale.html")
    page = Page(browser, tmp_path / "stale.html")
    tops = [part.bounding_box()["y"] for part in page.tab.locator(".search, .tools").all()]
    assert len(tops) == 2
    assert max(tops) - min(tops) < 10
    page.tab.close()


TOO_LARGE_A_RATE = """\
import torch
w = torch.tensor(1.0, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=1.5)
for step in range(20):
    loss = (w - 3.0) ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
OF_A_NUMBER = """\
import torch
w = torch.tensor(2.0, requires_grad=True)
y = (w * 3).item()
y.backward()
"""


@needs_chromium
@pytest.mark.parametrize(
    ("program", "line"),
    [(TOO_LARGE_A_RATE, "optimizer.step()"), (OF_A_NUMBER, "y.backward()"), (STALE_NET, None)],
    ids=["a-step", "no-graph", "a-leaf"],
)
def test_a_page_opens_where_its_first_finding_can_be_read_with_its_sentence(
    gradviz_here: Callable[..., Any], browser: Any, tmp_path: Path, program: str, line: str | None
) -> None:
    """A finding about nothing in the graph has a box of its own, with the line."""
    (tmp_path / "found.py").write_text(program)
    gradviz_here("trace", "--engine", "numpy", "found.py")
    (found,) = json.loads(gradviz_here("check", "found.gradviz", "--format", "json").stdout)["findings"]
    gradviz_here("graph", "found.gradviz", "-o", "found.html")
    page = Page(browser, tmp_path / "found.html")
    assert found["message"] in page.text("#facts .finding-told")
    assert found["fix"] in page.text("#facts .finding-told")
    told = f"finding 1: {found['rule']}"
    assert told in page.tab.text_content(".chosen.finding")
    assert page.tab.locator(".chosen.finding text").last.bounding_box()["height"] > 6  # it can be read
    assert line is None or page.boxes()["f1"] == [f"found.py:{found['line']}", line, told]
    page.press("Home")
    assert page.count(".finding-told") == 0  # the event has the panel
    page.tab.keyboard.press("Escape")
    page.press("f")
    page.tab.click("#findings-list button")
    page.settled()
    (box,) = [one.bounding_box() for one in page.tab.locator(".chosen.finding").all()]
    widths = page.tab.evaluate(
        "[...document.querySelectorAll('.chosen.finding')].map((node) => [...node.querySelectorAll('text')]"
        ".map((text) => text.getBBox().width / node.querySelector('.box').getBBox().width))"
    )
    assert all(0 < width < 1 for width in widths[0])
    stage = page.tab.locator("#stage").bounding_box()
    assert stage["x"] <= box["x"]
    assert box["x"] + box["width"] <= stage["x"] + stage["width"]
    assert stage["y"] <= box["y"]
    assert box["y"] + box["height"] <= stage["y"] + stage["height"]
    assert page.wrong == []
    page.tab.close()


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_text_of_a_page_has_the_contrast_of_wcag_aa(
    gradviz_here: Callable[..., Any], browser: Any, tmp_path: Path, scheme: str
) -> None:
    (tmp_path / "found.py").write_text(
        "import torch\nw, v = (torch.ones(2, requires_grad=True) for _ in range(2))\n"
        "y = torch.sqrt(w * 0).sum() + (v * 2).detach().sum() + torch.randn(3).sum()\ny.backward()\n"
    )
    gradviz_here("trace", "--engine", "numpy", "found.py")
    gradviz_here("graph", "found.gradviz", "-o", "found.html")
    page = Page(browser, tmp_path / "found.html", color_scheme=scheme)
    assert page.count(".op.finding") + page.count(".grad_fn.finding") > 0
    for keys in ([], ["f"], ["Escape", "Escape", "b"], ["m"]):
        page.press(*keys)
        looked_at = page.tab.evaluate(Path(__file__).with_name("contrast.js").read_text(encoding="utf-8"))
        assert looked_at["checked"] > 50
        assert looked_at["faint"] == []
    page.tab.close()


@needs_chromium
def test_on_paper_are_the_picture_and_the_findings(
    gradviz_here: Callable[..., Any], browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "stale.py").write_text(STALE_NET)
    gradviz_here("trace", "--engine", "numpy", "stale.py")
    gradviz_here("graph", "stale.gradviz", "-o", "stale.html")
    page = Page(browser, tmp_path / "stale.html", color_scheme="dark")
    page.press("+", "+", "+")  # only a part is on the screen
    look = page.tab.get_attribute("#world", "transform")
    page.tab.set_viewport_size({"width": 700, "height": 1030})  # an A4 page within its margins
    page.tab.emulate_media(media="print")
    page.tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    sheet = page.tab.locator("#graph").bounding_box()
    boxes = [box.bounding_box() for box in page.tab.locator("#nodes > g").all()]
    assert len(boxes) > 10
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 700 for box in boxes)
    assert all(box["y"] >= 0 and box["y"] + box["height"] <= sheet["y"] + sheet["height"] for box in boxes)
    findings = page.tab.locator("#findings-list").bounding_box()
    assert sheet["y"] + sheet["height"] <= findings["y"] < findings["y"] + findings["height"] <= 1030
    assert "stale-gradient" in page.text("#findings-list")
    assert page.tab.locator(".tools, aside, .bar").evaluate_all("all => all.every((one) => !one.offsetHeight)")
    white = "rgb(255, 255, 255)"
    assert page.tab.evaluate("getComputedStyle(document.body).backgroundColor") == white
    page.tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.tab.emulate_media(media="screen")
    assert page.tab.get_attribute("#world", "transform") == look
    assert page.tab.locator("#findings-list").is_hidden()
    assert page.tab.evaluate("getComputedStyle(document.body).backgroundColor") != white
    assert page.wrong == []
    page.tab.close()


@needs_chromium
def test_a_box_is_coloured_whole_where_a_gradient_is(traced: Callable, opened: Callable) -> None:
    """A part of it would read as a level."""
    with traced(lesson) as trace:
        page = opened(trace)
        look = "one => getComputedStyle(one.querySelector('.box')).fill"
        filled = page.tab.locator(".leaf.has-grad").first
        ident = filled.get_attribute("id")
        with_gradient = filled.evaluate(look)
        assert filled.locator("rect").count() == 1
        page.press("Home")
        assert page.tab.locator(f'[id="{ident}"]').evaluate(look) != with_gradient
        page.press("m")
        assert "leaf with a gradient in its .grad" in page.text("#signs-list")


@needs_chromium
def test_a_chart_of_few_passes_waits_until_it_is_asked_for(traced: Callable, opened: Callable) -> None:
    def passes(count: int) -> None:
        w = torch.ones(2, requires_grad=True)
        for _ in range(count):
            (w * 2).sum().backward()

    for count, is_hidden in ((3, True), (4, False)):
        with traced(lambda count=count: passes(count)) as trace:
            page = opened(trace)
            assert page.tab.locator("#chart").is_hidden() == is_hidden
            page.press("c")
            assert page.tab.locator("#chart").is_hidden() != is_hidden


READ_OF_A_NON_LEAF = """\
import torch
w = torch.ones(3, requires_grad=True)
y = w * 2
y.sum().backward()
print(y.grad)
"""


@needs_chromium
def test_the_list_of_findings_has_the_notes_of_a_check(
    gradviz_here: Callable[..., Any], browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "read.py").write_text(READ_OF_A_NON_LEAF)
    gradviz_here("trace", "--engine", "numpy", "read.py")
    checked = json.loads(gradviz_here("check", "read.gradviz", "--format", "json").stdout)["findings"]
    assert [finding["severity"] for finding in checked] == ["note"]
    gradviz_here("graph", "read.gradviz", "-o", "read.html")
    page = Page(browser, tmp_path / "read.html")
    assert page.text("#findings") == "1 finding"
    page.press("f")
    (row,) = page.tab.locator("#findings-list li").all_inner_texts()
    assert row.startswith(f"1 note {checked[0]['rule']}")
    assert page.count("#nodes .finding") == 0  # a note marks nothing
    page.tab.click("#findings-list button")
    page.settled()
    assert page.count(".chosen") == 1
    assert page.text("#source-title") == "read.py:5 · 1 nonleaf-grad-read"
    assert page.text("#source .marked mark") == "y.grad"
    page.tab.close()


@needs_chromium
def test_the_panel_of_a_pass_tells_its_loss_and_layers(opened: Callable[..., Page], tmp_path: Path) -> None:
    norms, sizes = [], []
    with record(tmp_path / "run.gradviz"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 1))
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in (net[0], net[2])]
        for _ in range(2):
            net.zero_grad()
            loss = net(torch.ones(2, 3)).pow(2).mean()
            loss.backward()
            parts = [list(part.parameters()) for part in (net[0], net[2])]
            norms.append([sum(float((p.grad**2).sum()) for p in part) ** 0.5 for part in parts])
            sizes.append([sum(float((p.detach() ** 2).sum()) for p in part) ** 0.5 for part in parts])
            for optimizer in optimizers:
                optimizer.step()
    page = opened(tmp_path / "run.gradviz", 1)
    for number in (0, 1):
        if number:
            page.press("]")
        page.tab.wait_for_selector(f".pass h3:text-is('Pass {number + 1}')", timeout=30_000)
        names, bars, told, changes = zip(*rows_of(page, ".layers tbody tr"), strict=True)
        assert names == ("net.0", "net.2")
        assert [float(text) for text in told] == pytest.approx(norms[number], rel=1e-3)
        shares = [float(text.removesuffix(" %")) / 100 for text in changes]
        ratios = [0.01 * norm / size for norm, size in zip(norms[number], sizes[number], strict=True)]
        assert shares == pytest.approx(ratios, rel=1e-2)
        assert all(text == "" for text in bars)
    widths = page.tab.evaluate(
        "[...document.querySelectorAll('.layers rect')].map((bar) => bar.getBoundingClientRect().width"
        " / bar.closest('td').getBoundingClientRect().width)"
    )
    assert (widths[0] > widths[1]) == (norms[1][0] > norms[1][1])
    assert max(widths) > 0.8
    page.tab.click(".layers .link >> nth=0")
    assert page.text("#facts h2").startswith(("net.0", "0"))


def test_long_names_in_the_panel_are_cut_on_the_left(traced: Callable, opened: Callable) -> None:
    def program() -> None:
        encoder = nn.ModuleDict({"layers_of_all_the_words_of_it": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))})
        encoder["layers_of_all_the_words_of_it"](torch.ones(2, 3)).sum().backward()

    with traced(program) as trace:
        page = opened(trace)
        for table in (".leaves", ".layers tbody"):
            assert page.count(f"{table} th") > 1
            ends = page.tab.evaluate(ENDS_IN_SIGHT, f"{table} th")
            assert set(ends) == {True}, table


# Whether the last letters of the names in some cells are inside the cell.
ENDS_IN_SIGHT = """cells => [...document.querySelectorAll(cells)].map((cell) => {
  const range = document.createRange(), text = cell.querySelector('bdi').firstChild;
  range.setStart(text, text.length - 4);
  range.setEnd(text, text.length);
  const [end, whole] = [range, cell].map((part) => part.getBoundingClientRect());
  return end.left >= whole.left && end.right <= whole.right;
})"""


def rows_of(page: Page, selector: str) -> list[list[str]]:
    """The texts of the cells of some rows of a table."""
    return page.tab.evaluate(
        f"[...document.querySelectorAll('{selector}')]"
        ".map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    )


def test_small_passes_are_packed_together_behind_the_first(traced: Callable, opened: Callable) -> None:
    def program() -> None:
        w = torch.tensor(1.0, requires_grad=True)
        for step in range(12):
            (w * step).exp().backward()

    with traced(program) as trace:
        html = page_of.html(trace, lambda number: build(trace, number), 1)
        assert json.loads(re.findall(r'"packed":(\[[^]]*\])', html)[0]) == [1, 8, 3]
        page = opened(trace, 1)
        page.press("]", "]", "[", "]")
        assert page.text("#position").endswith("backward pass 3 of 12")
        assert "w * step" in page.text("#source")


def test_a_pass_for_which_there_is_no_room_is_not_built(
    traced: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program() -> None:
        w = torch.tensor(1.0, requires_grad=True)
        for _ in range(6):
            (w * 2).exp().backward()

    with traced(program) as trace:
        first = build(trace, 1)
        shown = len(views.view(first, trace.passes[0], views.Shared(Words(trace)))["steps"])
        monkeypatch.setattr(page_of, "MOST_OF_SMALL", len(first.nodes) + shown + len(first.nodes))
        built: list[int | None] = []

        def built_on_demand(number: int | None) -> Graph:
            built.append(number)
            return build(trace, number)

        html = page_of.html(trace, built_on_demand, 1)
    assert '"held":[1]' in html
    assert built == [1]
