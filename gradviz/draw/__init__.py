"""Pictures of graphs.

The package is also the function `gradviz.draw(tensor)`: the module is callable, and passes the call on to
`gradviz.notebook.draw`, which can record the graph of a live tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    live: Callable[..., Any]  # set by the package gradviz, because views must not import an engine

    def __call__(self, thing: Any, inputs: Any = None, **settings: Any) -> Any:
        """See gradviz.notebook.draw."""
        return self.live(thing, inputs, **settings)


sys.modules[__name__].__class__ = _CallableModule
