"""The line that commands are typed on."""

from __future__ import annotations

from gradviz.step.terminal import Prompt

NAMES = {"": ["who", "why", "watch"], "who ": ["weight", "weight.grad", "x"]}


def typed(*keys: str, text: str = "", history: tuple[str, ...] = ()) -> Prompt:
    prompt = Prompt(text, list(history), lambda before: NAMES.get(before, []))
    for key in keys:
        assert prompt.type(key)
    return prompt


def test_what_is_typed_stands_where_the_cursor_is() -> None:
    assert typed("g", "o", "space", "1").shown == "go 1▏"
    assert typed("left", "left", "backspace", "x", text="goto").shown == "gx▏to"
    assert typed("home", "a", "end", "z", text="b").shown == "abz▏"
    assert typed("left", "left", "left", text="b").shown == "▏b"
    assert typed("right", text="b").shown == "b▏"
    assert typed("\x07", "page-up", text="b").text == "b"


def test_words_and_lines_are_cut() -> None:
    assert typed("\x17", text="until grad.rms < ").text == "until grad.rms "
    assert typed("\x17", "\x17", "\x17", "\x17", text="until grad.rms < ").text == ""
    assert typed("left", "\x15", text="who w").text == "w"


def test_the_commands_before_come_back() -> None:
    history = ("next", "who w", "next", "why")
    assert typed("up", history=history).text == "why"
    assert typed("up", "up", history=history).text == "next"
    assert typed("up", "up", "up", "up", "up", history=history).text == "who w"
    assert typed("up", "down", text="half", history=history).text == "half"
    assert typed("down", text="half", history=history).text == "half"


def test_tab_goes_round_in_what_a_word_may_be() -> None:
    assert typed("tab", text="wh").text == "who"
    assert typed("tab", "tab", text="wh").text == "why"
    assert typed("tab", "tab", "tab", text="wh").text == "wh"
    assert typed("tab", "space", "w", "tab", text="wh").text == "who weight"
    assert typed("tab", "tab", text="who w").text == "who weight.grad"
    assert typed("tab", text="who nothing").text == "who nothing"
    assert typed("left", "left", "tab", text="wh x").shown == "who▏ x"


def test_escape_and_backspace_in_an_empty_line_leave_it() -> None:
    assert not Prompt("who w", [], lambda _: []).type("escape")
    assert not Prompt("", [], lambda _: []).type("backspace")
    assert Prompt("w", [], lambda _: []).type("backspace")
