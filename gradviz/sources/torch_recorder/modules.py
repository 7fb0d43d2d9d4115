"""Modules: each call is a scope; parameters and buffers are called by the variable that holds the network."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch.nn.modules import module as torch_modules

from gradviz.events.holders import holder_of
from gradviz.events.numbers import next_scope_number
from gradviz.sources.torch_recorder.source import Source, safely, users_frame


class Scopes:
    """Tells of the calls of modules, by global hooks."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self.handles: list[Any] = []

    def begin(self) -> None:
        """Put the hooks there."""
        self.handles = [
            torch_modules.register_module_forward_pre_hook(self._enter),
            torch_modules.register_module_forward_hook(self._leave, always_call=True),
        ]

    def end(self) -> None:
        """Remove them."""
        for handle in self.handles:
            handle.remove()

    @safely
    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        source = self.source
        if source.listener is None or torch.compiler.is_compiling():
            return
        with torch._C.DisableTorchFunction():
            source.identity.tell_pending()
            if module not in self.names:
                self._name_all(module)
        frame = sys._getframe(2)
        number = next_scope_number()
        source.thread.scopes.append((number, id(module)))
        source.listener.scope_entered(
            frame, number, "module", self.names[module], type(module).__name__, module.training
        )

    @safely
    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        source = self.source
        if source.listener is None or torch.compiler.is_compiling():
            return
        scopes = source.thread.scopes
        if not any(owner == id(module) for _, owner in scopes):
            return
        while scopes:
            number, owner = scopes.pop()
            source.listener.scope_left(number)
            if owner == id(module):
                return

    def _name_all(self, module: torch.nn.Module) -> None:
        """Tell of the names of all parameters and buffers of the outermost module that is called."""
        source = self.source
        listener: Any = source.listener
        root = holder_of(module, users_frame(sys._getframe())) or type(module).__name__
        for path, part in module.named_modules():
            self.names.setdefault(part, f"{root}.{path}" if path else root)
        for path, parameter in module.named_parameters():
            listener.named(source.identity.number_of(parameter), f"{root}.{path}")
        for path, buffer in module.named_buffers():
            listener.named(source.identity.number_of(buffer), f"{root}.{path}", "buffer")
