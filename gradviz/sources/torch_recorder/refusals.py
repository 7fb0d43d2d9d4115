"""Passes that PyTorch refuses before they begin: of a root that is no scalar, or that does not require grad."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gradviz.sources.torch_recorder.shared import Source, in_transform, safely


class Refusals:
    """Hands what refuses a pass to the listener."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @contextmanager
    def seen(self, roots: Sequence[Any] = ()) -> Iterator[None]:
        """What is raised inside refuses a pass from these roots."""
        try:
            yield
        except RuntimeError as error:
            self._tell(roots, error)
            raise

    def making_gradients(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """PyTorch's function that makes the gradients that a pass starts with, whose refusals are seen."""

        def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            with self.seen(outputs):
                return make(outputs, *args, **kwargs)

        return run

    @safely
    def _tell(self, roots: Sequence[Any], error: RuntimeError) -> None:
        source = self.source
        if source.is_off or source.listener is None or in_transform() or source.thread.unseen:
            return
        source.identity.tell_pending()
        with torch._C.DisableTorchFunction():
            nodes = [root.grad_fn for root in roots if isinstance(root, torch.Tensor) and root.grad_fn]
            node = source.identity.record_of(nodes[0]).number if nodes else 0
        source.listener.error(error.__traceback__, type(error).__name__, str(error), node)
