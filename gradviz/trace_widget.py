"""`gradviz.widget`: the page of a trace in a notebook, whose place Python knows and sets.

One file for Jupyter, VS Code, Colab and marimo, by anywidget, which is an extra: only this file imports it."""

from importlib.resources import files
from typing import Any

import anywidget
import traitlets


class TraceWidget(anywidget.AnyWidget):
    """The page of a trace. `pass_number`, `event` (from 1) and `selected` (the id of a node, empty for none) are where
    it is: they change as a person steps, and the page goes where they are set. `sentence` says what happened at the
    event. `height` is in pixels."""

    _esm = files("gradviz.page").joinpath("widget.js").read_text(encoding="utf-8")
    page = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(640).tag(sync=True)
    pass_number = traitlets.Int(0).tag(sync=True)
    event = traitlets.Int(0).tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    sentence = traitlets.Unicode("").tag(sync=True)

    def __init__(self, page: str, **places: Any) -> None:
        super().__init__(page=page, **places)
