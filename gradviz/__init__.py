"""gradviz: a flight recorder and debugger for gradients.

    import gradviz
    import gradviz.engine as torch  # the NumPy engine, under PyTorch's names

    with gradviz.record("run.gradviz"):
        ...
    gradviz.open("run.gradviz")
    gradviz.check("run.gradviz")
    gradviz.why("run.gradviz", "w")
    gradviz.diff("good.gradviz", "bad.gradviz")
    gradviz.draw(loss).save("loss.svg")

`import gradviz` is light: the recorder, the reader and the engine are loaded when they are first used.
"""

from __future__ import annotations

from typing import Any

from gradviz import draw
from gradviz.version import __version__

__all__ = ["__version__", "check", "diff", "draw", "open", "record", "show", "why"]


def _draw_live(thing: Any, inputs: Any = None, **settings: Any) -> Any:
    from gradviz.notebook import draw as draw_live

    return draw_live(thing, inputs, **settings)


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext gradviz` calls: makes `%%gradviz` known."""
    from gradviz.magic import load

    load(shell)


draw.live = _draw_live  # type: ignore[attr-defined]  # gradviz.draw(tensor), and gradviz.draw is the package too


def __getattr__(name: str) -> Any:
    """`record`, `open`, `show`, `check`, `why` and `diff`. Raises AttributeError for any other name, with a hint where
    PyTorch's names are."""
    if name == "record":
        from gradviz.sources.record import record

        return record
    if name == "open":
        from gradviz.tracefile import open_trace

        return open_trace
    if name == "show":
        from gradviz.notebook import show

        return show
    if name in ("check", "diff", "why"):
        from gradviz import diagnose

        return getattr(diagnose, name)
    message = f"module 'gradviz' has no attribute {name!r}"
    if not name.startswith("_"):
        message += "; PyTorch's names are in gradviz.engine: import gradviz.engine as torch"
    # without these arguments Python would append its own suggestion
    raise AttributeError(message, name=None, obj=None)


def __dir__() -> list[str]:
    return __all__
