"""Moving and zooming the page's picture, with mouse, wheel, fingers and keys, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradviz import page as page_of
from tests.page.test_page import Page, needs_chromium, opened, playwright, traced, training

__all__ = ["opened", "playwright", "traced"]

pytestmark = [pytest.mark.slow, needs_chromium]


class Picture:
    """The picture of a page: where it is on the screen."""

    def __init__(self, page: Page) -> None:
        self.page, self.tab = page, page.tab
        self.devtools = page.tab.context.new_cdp_session(page.tab)
        box = self.tab.locator("#stage").bounding_box()
        self.middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def place(self, selector: str = "#nodes .box") -> tuple[float, float]:
        """The middle of the first such element."""
        box = self.tab.locator(selector).first.bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def scale(self) -> float:
        return float(self.tab.evaluate("document.getElementById('world').getCTM().a"))

    def at(self, x: float, y: float) -> tuple[float, float]:
        """What is at a point of the screen, in the picture's own measure."""
        there = f"new DOMPoint({x}, {y}).matrixTransform(document.getElementById('world').getScreenCTM().inverse())"
        return tuple(self.tab.evaluate(f"(({{x, y}}) => [x, y])({there})"))

    def fingers(self, kind: str, *points: tuple[float, float]) -> None:
        """Touch the screen with fingers at these points."""
        touched = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        self.devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touched})


@pytest.fixture
def picture(traced: Callable, opened: Callable) -> Iterator[Picture]:
    with traced(training) as trace:
        yield Picture(opened(trace, has_touch=True))


def near(place: tuple[float, float], other: tuple[float, float]) -> Any:
    return place == pytest.approx(other, abs=1.5)


def test_a_drag_moves_the_picture_and_selects_nothing(picture: Picture) -> None:
    x, y = picture.place()
    mouse = picture.tab.mouse
    mouse.move(x, y)
    mouse.down()
    mouse.move(x + 60, y + 30, steps=4)
    assert "dragging" in picture.tab.get_attribute("#stage", "class")
    mouse.up()
    assert near(picture.place(), (x + 60, y + 30))
    assert picture.page.count(".node.chosen") == 0
    assert "dragging" not in picture.tab.get_attribute("#stage", "class")


def test_a_click_with_an_unsteady_hand_is_a_click(picture: Picture) -> None:
    x, y = picture.place()
    mouse = picture.tab.mouse
    mouse.move(x, y)
    mouse.down()
    mouse.move(x + 2, y + 1)
    mouse.up()
    assert picture.page.count(".node.chosen") == 1


def test_the_wheel_zooms_at_the_pointer(picture: Picture) -> None:
    place, before = picture.place(), picture.scale()
    picture.tab.mouse.move(*place)
    picture.tab.mouse.wheel(0, -200)
    picture.tab.wait_for_function(f"document.getElementById('world').getCTM().a > {before * 1.1}")
    assert near(picture.place(), place)


def test_the_wheel_with_shift_moves_the_picture_aside(picture: Picture) -> None:
    (x, y), before = picture.place(), picture.scale()
    picture.tab.mouse.move(*picture.middle)
    picture.tab.keyboard.down("Shift")
    picture.tab.mouse.wheel(0, 50)
    picture.tab.keyboard.up("Shift")
    picture.tab.wait_for_timeout(100)
    assert near(picture.place(), (x - 50, y))
    assert picture.scale() == before


def test_two_fingers_zoom_and_move_at_once(picture: Picture) -> None:
    x, y = picture.middle
    before, between = picture.scale(), picture.at(x, y)
    picture.fingers("touchStart", (x - 50, y), (x + 50, y))
    picture.fingers("touchMove", (x - 70 + 40, y), (x + 70 + 40, y))
    picture.fingers("touchEnd")
    assert picture.scale() == pytest.approx(before * 1.4, rel=0.02)
    assert near(picture.at(x + 40, y), between)


def test_a_finger_moves_the_picture_and_a_tap_selects(picture: Picture) -> None:
    x, y = picture.place()
    picture.fingers("touchStart", (x, y))
    picture.fingers("touchMove", (x + 20, y + 20))
    picture.fingers("touchMove", (x + 40, y + 50))
    picture.fingers("touchEnd")
    assert near(picture.place(), (x + 40, y + 50))
    assert picture.page.count(".node.chosen") == 0
    picture.tab.wait_for_timeout(600)  # longer than between the taps of a double tap
    picture.tab.touchscreen.tap(*picture.place())
    assert picture.page.count(".node.chosen") == 1


def test_keys_and_buttons_zoom_and_move(picture: Picture) -> None:
    (x, y), before = picture.place(), picture.scale()
    picture.page.press("d")
    assert near(picture.place(), (x - 80, y))
    picture.page.press("a", "w")
    assert near(picture.place(), (x, y + 80))
    picture.page.press("+")
    assert picture.scale() == pytest.approx(before * 1.3, abs=2e-4)  # it has four digits
    picture.tab.click("#zoom-out")
    assert picture.scale() == pytest.approx(before, abs=2e-4)
    for _ in range(30):
        picture.page.press("-")
    assert picture.scale() == pytest.approx(0.02)
    for _ in range(40):
        picture.page.press("+")
    assert picture.scale() == pytest.approx(4)
    picture.page.press("0")
    stage = picture.tab.locator("#stage").bounding_box()
    world = picture.tab.locator("#world").bounding_box()
    assert world["x"] >= stage["x"]
    assert world["x"] + world["width"] <= stage["x"] + stage["width"]
    assert world["y"] + world["height"] <= stage["y"] + stage["height"]


def test_a_double_click_opens_a_group_and_does_not_zoom(picture: Picture) -> None:
    picture.page.press("Shift+U", "0")
    before, boxes = picture.scale(), picture.page.count("#nodes > g")
    picture.tab.mouse.dblclick(*picture.place("#nodes .group .box"))
    assert picture.page.count("#nodes > g") > boxes
    assert picture.scale() == before


def test_the_licences_of_the_libraries_are_in_the_page(picture: Picture) -> None:
    script = picture.tab.evaluate("document.scripts[document.scripts.length - 1].textContent")
    assert page_of.libraries() in script
    assert "this permission notice appear in all copies" in script
    for name in page_of.LIBRARIES:
        assert f"https://d3js.org/{name}/ v" in script
