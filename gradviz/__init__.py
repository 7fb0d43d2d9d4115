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

from typing import TYPE_CHECKING, Any

from gradviz.version import __version__

if TYPE_CHECKING:
    from gradviz.compare.parting import diff
    from gradviz.notebook import draw, show, widget
    from gradviz.recorded_run import open
    from gradviz.replaying import check, why
    from gradviz.sources.record import record

__all__ = ["__version__", "check", "diff", "draw", "open", "record", "show", "why", "widget"]

_FOUND_IN = {
    "check": ("gradviz.replaying", "check"),
    "diff": ("gradviz.compare", "diff"),
    "draw": ("gradviz.notebook", "draw"),
    "open": ("gradviz.recorded_run", "open"),
    "record": ("gradviz.sources.record", "record"),
    "show": ("gradviz.notebook", "show"),
    "why": ("gradviz.replaying", "why"),
    "widget": ("gradviz.notebook", "widget"),
}


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext gradviz` calls: makes `%%gradviz` known."""
    from gradviz.magic import load

    load(shell)


if not TYPE_CHECKING:  # a type checker would take any name for one that this gives

    def __getattr__(name: str) -> Any:
        """A public name, loaded when it is first used. Raises AttributeError for any other name, with a hint where
        PyTorch's names are."""
        if name in _FOUND_IN:
            from importlib import import_module

            module, own = _FOUND_IN[name]
            return getattr(import_module(module), own)
        message = f"module 'gradviz' has no attribute {name!r}"
        if not name.startswith("_"):
            message += "; PyTorch's names are in gradviz.engine: import gradviz.engine as torch"
        # without these arguments Python would append its own suggestion
        raise AttributeError(message, name=None, obj=None)


def __dir__() -> list[str]:
    return __all__
