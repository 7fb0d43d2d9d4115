"""Runs a plan of `gradviz.replay` as code compiled by PyTorch.

The calls of the plan are made once uncompiled, and noted as a torch.fx graph, which torch.compile receives as a
whole, with the same inputs. So the recorded program itself is not needed."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

from gradviz.query.query import Query
from gradviz.query.replayable_functions import settings_of
from gradviz.replay.outcome import Edits, Graph, Outcome
from gradviz.replay.plan import Call, Input, Plan, ReplayError
from gradviz.sources.torch_replay import Replay, TorchRunner

if TYPE_CHECKING:
    import torch

_GETTER = ".__get__"
# The errors that PyTorch raises if it cannot compile: its own are RuntimeErrors, a backend's may be any of these.
_REFUSALS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError, NotImplementedError,
    OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


class CompiledRunner(TorchRunner):
    """PyTorch as a `Runner` whose calls are compiled by a backend of torch.compile. Raises ReplayError for an unknown
    backend, or if PyTorch is not installed."""

    def __init__(self, backend: str, place: Any = lambda site: "", its_own: bool = False) -> None:
        super().__init__(place, its_own)
        if not self.is_pytorch:
            raise ReplayError("only a run of PyTorch's can be compiled, and PyTorch has to be installed")
        if backend not in self.torch.compiler.list_backends(exclude_tags=()):
            usual = ", ".join(["aot_eager", *self.torch.compiler.list_backends()])
            raise ReplayError(f"torch.compile has no backend of that name: it has {usual}")
        self.backend = backend

    def run(self, plan: Plan, edits: Edits, graph: Graph | None = None) -> Outcome:
        """Run a plan compiled, and keep the roots and the gradients. Raises ReplayError if PyTorch cannot compile it,
        and for edits, which are not supported here."""
        if edits != Edits() or graph is not None:
            raise ReplayError("a compiled pass runs as it was")
        with self.alone():
            noted = _Noted(self, plan)
            noted.make_calls()
            return _Compiled(self, plan, noted).outcome()

    def cannot(self, error: BaseException) -> ReplayError:
        """The error with the reason why PyTorch cannot compile a pass, in one line."""
        cause = getattr(error, "inner_exception", error)  # the backend's error, inside one of torch.compile's
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        why = lines[0] if lines else type(cause).__name__
        return ReplayError(f"PyTorch cannot compile this pass with {self.backend}: {why}")


def compiling_runner_of(query: Query, backend: str, place: Any = lambda site: "") -> CompiledRunner:
    """The runner that runs the passes of a trace compiled. Raises ReplayError as CompiledRunner does."""
    return CompiledRunner(backend, place, query.trace.meta.get("engine") != "torch")


class _Noted(Replay):
    """A run of a plan that notes its calls as a graph."""

    def __init__(self, runner: CompiledRunner, plan: Plan) -> None:
        super().__init__(runner, plan, Edits(), None)
        self.fx: Any = runner.torch.fx.Graph()
        self.noted: dict[int, Any] = {}  # the node of each tensor, by its number
        self.inputs: list[Any] = []
        self.contexts = ""
        self.open: list[Any] = []

    def module(self) -> Any:
        """The graph as a module, which maps the inputs of the plan to its roots."""
        self._leave_contexts()
        self.fx.output(tuple(self.noted[number] for number in self.plan.roots))
        return self.torch.fx.GraphModule(self.torch.nn.Module(), self.fx)

    def _enter(self, step: Input) -> None:
        super()._enter(step)
        place = self.inputs[-1] if self.inputs else self.fx._root
        with self.fx.inserting_after(place):
            self.inputs.append(self.fx.placeholder(f"input_{len(self.inputs)}"))
        self.noted[step.tensor] = self.inputs[-1]

    def call(self, call: Call) -> None:
        """Make a call, and note it."""
        arguments = self._noted_arguments(call)
        result = self._result(call)
        if call.generator is not None:
            state = self.torch.from_numpy(call.generator)
            on_cpu = all(self.tensor(number).device.type == "cpu" for number in call.inputs)
            if not on_cpu or not self.torch.equal(self.torch.get_rng_state(), state):
                raise self.refused(call, "draws random numbers, of which compiled code draws others")
        paths = list(_paths(result, self.torch.Tensor))
        if len(paths) != len(call.outputs):
            raise self.refused(call, f"returns {len(paths)} tensors now, and {len(call.outputs)} then")
        self._begin_noted_context(self._context(call))
        node = self._node(call, *arguments)
        for number, path in zip(call.outputs, paths, strict=True):
            value, of_result = result, node
            for place in path:
                value = value[place]
                of_result = self.fx.call_function(operator.getitem, (of_result, place))
            self.tensors[number], self.noted[number] = value, of_result

    def _noted_arguments(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with nodes in place of tensors."""
        tensors, self.tensors = self.tensors, self.noted
        try:
            positional, named = call.arguments
            return tuple(self.value(part, call) for part in positional), {
                key: self.value(part, call) for key, part in named.items()
            }
        finally:
            self.tensors = tensors

    def _node(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        of, _, name = call.function.partition(".")
        if name.endswith(_GETTER):
            return self.fx.call_function(getattr, (args[0], name.removesuffix(_GETTER)))
        if of == "Tensor":
            return self.fx.call_method(name, args, kwargs)
        return self.fx.call_function(self._nameable(self.runner.functions[call.function]), args, kwargs)

    def _nameable(self, function: Any) -> Any:
        """A function that the code of a graph can name: the function itself, or a copy if its name leads elsewhere."""
        if not isinstance(function, FunctionType):
            return function
        named: Any = self.torch
        for part in f"{function.__module__}.{function.__name__}".split(".")[1:]:
            named = getattr(named, part, None)
        if named is function:
            return function
        copied = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        copied.__kwdefaults__, copied.__module__ = function.__kwdefaults__, "calls"
        return copied

    # --- contexts

    def _begin_noted_context(self, context: str) -> None:
        """Note the state that calls depend on besides their arguments."""
        if context == self.contexts:
            return
        self._leave_contexts()
        self.contexts = context
        torch, settings = self.torch, settings_of(context)
        if settings.default != "float32":
            raise ReplayError("a pass with another default dtype is not compiled here")
        if not settings.has_grad_mode:
            self.fx.call_function(torch._C._set_grad_enabled, (False,))
            self.open.append((torch._C._set_grad_enabled, (True,)))
        for device, name in settings.autocast.items():
            enter = torch.amp.autocast_mode._enter_autocast
            entered = self.fx.call_function(
                enter, (self.runner.device(device).type, self.runner.dtype(name), True, None)
            )
            self.open.append((torch.amp.autocast_mode._exit_autocast, (entered,)))

    def _leave_contexts(self) -> None:
        while self.open:
            self.fx.call_function(*self.open.pop())


class _Compiled(Replay):
    """A run of a plan whose calls are compiled."""

    def __init__(self, runner: CompiledRunner, plan: Plan, noted: _Noted) -> None:
        super().__init__(runner, plan, Edits(), None)
        self.compiling, self.noted = runner, noted

    def make_calls(self) -> None:
        """Compile the calls, and make them with the inputs."""
        inputs: list[torch.Tensor] = []
        for step in self.plan.inputs:
            self._enter(step)
            inputs.append(self.tensors[step.tensor])
        self.torch._dynamo.reset()
        try:
            compiled = self.torch.compile(
                self.noted.module(), backend=self.compiling.backend, fullgraph=True, dynamic=False
            )
            roots = compiled(*inputs)
        except _REFUSALS as error:
            raise self.compiling.cannot(error) from error
        self.tensors.update(zip(self.plan.roots, roots, strict=True))


def _paths(result: Any, of_class: type) -> Iterator[tuple[int, ...]]:
    """The positions of the tensors in a result, in the order of `tensors_returned`."""
    if isinstance(result, of_class):
        yield ()
    elif isinstance(result, (tuple, list)):
        yield from _inside(result, of_class)


def _inside(values: Any, of_class: type) -> Iterator[tuple[int, ...]]:
    for place, value in enumerate(values):
        if isinstance(value, of_class):
            yield (place,)
        elif type(value) in (list, tuple):
            yield from ((place, *rest) for rest in _inside(value, of_class))
