"""Passes that PyTorch refuses before they begin: from a root that is not a scalar, or does not require grad."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gradviz.sources.torch_recorder.shared import Source, in_transform, safely


class Refusals:
    """Emits such errors to the listener."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @contextmanager
    def seen(self, roots: Sequence[Any] = ()) -> Iterator[None]:
        """A context whose RuntimeErrors are emitted as refusals of a pass from these roots."""
        try:
            yield
        except RuntimeError as error:
            self._tell(roots, error)
            raise

    def making_gradients(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of PyTorch's function that makes the initial gradients of a pass; its refusals are
        emitted."""

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
