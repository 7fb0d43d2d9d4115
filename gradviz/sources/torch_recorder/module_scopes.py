"""Modules: each call is a scope; parameters and buffers are named after the variable that holds the network."""

import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from gradviz.events.counters import next_scope_number
from gradviz.events.holders import holder_of, members, outermost_modules, parameters_below, parts_held, tied_parameters
from gradviz.events.kinds import TIED
from gradviz.sources.torch_recorder.collectives import Collectives
from gradviz.sources.torch_recorder.histograms import Binning
from gradviz.sources.torch_recorder.shared import Source, safely, users_frame


class Scopes:
    """Emits the calls of modules. Not with hooks: PyTorch calls modules differently if hooks are registered."""

    def __init__(
        self, source: Source, opaque: Callable[..., Any], collectives: Collectives, rests: Callable[[], bool | None]
    ) -> None:
        self.source, self.opaque = source, opaque  # calls a compiled module
        self.rests = rests  # whether nothing is watched from here on
        self.collectives = collectives  # notes the called modules that average gradients
        self.binning: Binning | None = None  # receives the results of modules, if it is set
        # Receives the parameters of an outermost module that is freed:
        self.freed: Callable[[set[int]], object] = lambda leaves: None
        self.names: dict[int, tuple[weakref.ref[Any], str]] = {}  # by identity: not every module has a hash
        self.outermost: dict[int, weakref.ref[Any]] = {}  # these modules, by identity

    def calling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of the modules' `__call__`, which emits the scope."""
        scopes = self

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:  # PyTorch's profiler looks for the module by this name
            source = scopes.source
            if source.is_off:
                return call(self, *args, **kwargs)
            thread = source.thread
            open_scopes = thread.scopes
            if not open_scopes and scopes.rests():
                return call(self, *args, **kwargs)
            if thread.stepping is not None:
                source.recover()
            is_compiled = None
            try:
                is_compiled = scopes._enter(self, sys._getframe(), open_scopes)
            except Exception as error:
                source.gave_up(error)
            try:
                if is_compiled:
                    called = functools.partial(call, self)
                    return scopes.opaque(called, args, kwargs, sys._getframe(1))
                result = call(self, *args, **kwargs)
                if source.identity.nameless:
                    scopes.name_gathered(self)
                if scopes.binning is not None:
                    scopes.binning.called(self, scopes._name_of(self), result)
                return result
            finally:
                try:
                    scopes._leave(self, open_scopes)
                except Exception as error:
                    source.gave_up(error)

        run.__name__, run.__qualname__ = call.__name__, call.__qualname__
        return run

    def _enter(self, module: torch.nn.Module, frame: FrameType, open_scopes: list[tuple[int, int]]) -> bool:
        """Emit that a module is called inside the open scopes; returns whether it runs compiled, by `torch.compile`
        or as TorchScript."""
        source = self.source
        collectives = self.collectives
        if collectives.syncing is not None or type(module) not in collectives.others:
            collectives.note(module, frame)
        known = self.names.get(id(module))
        name = known[1] if known is not None and known[0]() is module else ""
        if not name or source.identity.pending:
            with torch._C.DisableTorchFunction():
                source.identity.tell_pending()
                name = name or self._name_all(module, frame)
        number = next_scope_number()
        open_scopes.append((number, id(module)))
        source.listener.scope_entered(frame, number, "module", name, type(module).__name__, module.training)
        attributes = module.__dict__
        is_scripted = isinstance(module, torch.jit.ScriptModule)
        return is_scripted or attributes.get("_compiled_call_impl") is not None or "dynamo_ctx" in attributes

    def _leave(self, module: torch.nn.Module, scopes: list[tuple[int, int]]) -> None:
        source = self.source
        listener = source.listener
        if listener is None:
            return
        if scopes and scopes[-1][1] == id(module):  # the usual case: the scope was not left in another way
            listener.scope_left(scopes.pop()[0])
            return
        if id(module) not in [owner for _, owner in scopes]:
            return
        while scopes:
            number, owner = scopes.pop()
            listener.scope_left(number)
            if owner == id(module):
                return

    @safely
    def name_gathered(self, module: torch.nn.Module) -> None:
        """Emit the names of the whole parameters that `fully_shard` put in place of a module's parts while it ran.
        The module has its parts again, and PyTorch names the whole parameters nowhere else."""
        state_of, listener = getattr(module, "_get_fsdp_state", None), self.source.listener
        if state_of is None or listener is None:
            return
        state, identity = state_of(), self.source.identity
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for part in [part for group in groups for part in getattr(group, "fsdp_params", ())]:
            known = identity.known.get(id(getattr(part, "_unsharded_param", None)))
            place = getattr(part, "_module_info", None)
            owner, name = self._name_of(getattr(place, "module", None)), getattr(place, "param_name", "")
            if known is not None and owner and name and identity.nameless.pop(known.number, None) is not None:
                listener.named(known.number, f"{owner}.{name}")

    def _name_of(self, module: torch.nn.Module | None) -> str:
        known = self.names.get(id(module))
        return known[1] if known is not None and known[0]() is module else ""

    def _path_in_callers(self, module: torch.nn.Module) -> str:
        """The path of a module below a named module that is running, which got it after its first call, as an adapter
        that is put in place of a layer; empty if none has it."""
        for _, owner in self.source.thread.scopes:
            known = self.names.get(owner)
            running = known[0]() if known is not None else None
            for path, part in members(running) if running is not None else ():
                if part is module and known is not None:
                    return f"{known[1]}.{path}"
        return ""

    def _name_all(self, module: torch.nn.Module, frame: FrameType) -> str:
        """Emit the names of all parameters and buffers of the outermost called module; returns the module's own
        name."""
        source = self.source
        listener = source.listener
        caller = users_frame(frame)
        held, root = parts_held(module, caller), self._path_in_callers(module) or holder_of(module, caller)
        root = root or type(module).__name__
        for path, part in members(module) or [("", module)]:
            if not self._name_of(part):
                name = held.get(id(part)) or (f"{root}.{path}" if path else root)
                self.names[id(part)] = weakref.ref(part), name
        numbers = set()
        for path, parameter in members(module, "parameters"):
            number = source.identity.number_of(parameter)
            numbers.add(number)
            source.identity.nameless.pop(number, None)
            listener.named(number, held.get(id(parameter)) or f"{root}.{path}")
        self._follow(module, numbers)
        for path, parameter in tied_parameters(module):
            listener.named(source.identity.number_of(parameter), f"{root}.{path}", TIED)
        for path, buffer in members(module, "buffers"):
            listener.named(source.identity.number_of(buffer), f"{root}.{path}", "buffer")
        return self._name_of(module)

    def _follow(self, module: torch.nn.Module, parameters: set[int]) -> None:
        """Tell of the parameters of a module when it is freed. They still live then, since the module holds them."""
        key = id(module)

        def freed(_: object) -> None:
            self.outermost.pop(key, None)
            self.freed(parameters)

        self.outermost[key] = weakref.ref(module, freed)


def name_the_rest(source: Source, frame: FrameType | None) -> None:
    """Emit the names of parameters whose modules were never called, if variables hold these modules."""
    rest, source.identity.nameless = source.identity.nameless, {}
    listener = source.listener
    for path, parameter in parameters_below(outermost_modules(users_frame(frame))):
        known = source.identity.known.get(id(parameter))
        if known is not None and known.number in rest:
            listener.named(known.number, path)
