"""Runs a plan of `gradviz.replay` on the library that was recorded, PyTorch or gradviz's engine. Where PyTorch is not
installed, the engine takes its place.

A trace may come from anybody. It names the functions: only functions in the closed table are called. Its arguments
are numbers, names of dtypes and devices, and tensors, all decoded here by hand. The memory of its computations is
limited (where the system can), and so is the time.

For gradviz.replay.samples it also separates the terms of a loss that is a mean or a sum over a batch."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from gradviz.events.values import SMALL
from gradviz.query.query import Query
from gradviz.query.replayable_functions import WITHOUT_GRAD, functions_of, is_dropout, settings_of
from gradviz.replay.outcome import Edits, Flowed, Graph, Outcome, Vjp, indices_of
from gradviz.replay.plan import Call, Input, Plan, ReplayError, argument_of
from gradviz.replay.samples import REDUCTIONS, Term, scalings_of
from gradviz.sources.call_arguments import tensors_returned
from gradviz.sources.pytorch import is_installed
from gradviz.system.process import limited_memory
from gradviz.version import TORCH_VERSION

if TYPE_CHECKING:
    import torch


_SECONDS = 600.0  # checked between calls: a call that has begun is not interrupted
_WIDENING = {"float16", "bfloat16", "float32", "float64"}
_TO_FLOAT = ("Tensor.float", "Tensor.half", "Tensor.bfloat16", "Tensor.double")
# The errors that PyTorch raises for arguments that do not fit together.
_REFUSALS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NotImplementedError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip


class TorchRunner:
    """PyTorch as a `Runner`. gradviz's engine replaces it for passes of `its_own`, and where PyTorch is not
    installed. `place` turns the site of a call into words for a message, as `, line 12`."""

    def __init__(self, place: Any = lambda site: "", its_own: bool = False) -> None:
        self.is_pytorch = is_installed() and not its_own
        self.torch: Any = import_module("torch" if self.is_pytorch else "gradviz.engine")
        if self.is_pytorch:
            self.name = f"PyTorch {self.torch.__version__}"
            self.version = str(self.torch.__version__)
        else:
            self.name = f"gradviz's engine{'' if its_own else ', as PyTorch is not installed'}"
            self.version = TORCH_VERSION
        self.functions = functions_of(self.torch)
        self.named = {
            name: found
            for name in ("dtype", "layout", "memory_format", "device")
            if isinstance(found := getattr(self.torch, name, None), type)
        }
        self.place = place

    def run(self, plan: Plan, edits: Edits, graph: Graph | None = None) -> Outcome:
        """Run a plan. Raises ReplayError if a call fails, or is not in the table."""
        with self.alone():
            try:
                return Replay(self, plan, edits, graph).outcome()
            except ReplayError as error:
                raise ReplayError(f"{error}; {plan.remedy}") if plan.remedy else error from None

    def vjp_of(self, plan: Plan, graph: Graph) -> Vjp:
        if not self.is_pytorch:
            raise ReplayError("gradviz's engine does not run the nodes of a way one by one")
        with self.alone():
            replay = Replay(self, plan, Edits(), None)
            replay.make_calls()
            fns = replay.nodes_of(graph, [replay.tensor(number) for number in plan.roots])

        def vjp(node: int, position: int, received: Sequence[np.ndarray | None]) -> np.ndarray:
            with self.alone(), self.torch.no_grad():
                upstream = [None if one is None else self.torch.from_numpy(one) for one in received]
                return self.array_of(replay.sent(fns.get(node), position, upstream))

        return vjp

    def terms(self, plan: Plan, last: Call, most: int) -> list[Term]:
        """The terms of the loss that a call made, in order: see gradviz.replay.samples.TermRunner."""
        with self.alone():
            replay = Replay(self, plan, Edits(), None)
            replay.make_calls()
            parts = scaled(replay, last, parts_of(replay, last))
            losses = [float(part) for part in parts.detach()]
            sizes = [abs(loss) if np.isfinite(loss) else np.inf for loss in losses]
            chosen = set(sorted(range(len(losses)), key=lambda at: -sizes[at])[:most])
            start = replay.starts([replay.tensor(plan.roots[0])])[0]
            terms = []
            for at, loss in enumerate(losses):
                starts = [None if start is None else start.reshape(())]
                gradients = replay.gradients([parts[at]], starts, True) if at in chosen else {}
                norms = {leaf: float(of.double().norm()) for leaf, of in gradients.items() if of is not None}
                terms.append(Term(at, loss, norms))
            return terms

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which memory is limited, and neither random numbers nor settings of this process change."""
        before = self.torch.get_default_dtype()
        with ExitStack() as stack:
            stack.enter_context(limited_memory())
            stack.enter_context(self.torch.random.fork_rng())
            stack.enter_context(self.torch.enable_grad())
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # the program has already shown them
            stack.callback(self.torch.set_default_dtype, before)
            yield

    def dtype(self, name: str) -> torch.dtype:
        """A dtype by its name. Raises ReplayError if there is none."""
        dtype: Any = getattr(self.torch, name, None)
        if not isinstance(dtype, self.torch.dtype):
            raise ReplayError("there is no dtype of that name: the trace is damaged")
        return dtype

    def device(self, name: str) -> torch.device:
        """A device by its name; the CPU in place of a device that is not here."""
        torch = self.torch
        try:
            device = torch.device(name)
        except RuntimeError:
            raise ReplayError("there is no device of that name: the trace is damaged") from None
        is_here = (
            device.type == "cuda" and torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
        )
        return device if is_here else torch.device("cpu")

    def array_of(self, tensor: torch.Tensor) -> np.ndarray:
        """The elements of a tensor; float32 for dtypes that NumPy does not have."""
        plain = tensor.detach().cpu()
        return (self._in_numpys_way(plain) if self.is_pytorch else plain).numpy().copy()

    def _in_numpys_way(self, plain: torch.Tensor) -> torch.Tensor:
        """A PyTorch tensor in a form that NumPy supports."""
        if plain.layout is not self.torch.strided:
            plain = plain.to_dense()
        if plain._is_zerotensor():  # a gradient of zeros for which PyTorch has no memory
            return self.torch.zeros(plain.shape, dtype=plain.dtype)
        plain = plain.resolve_conj().resolve_neg()
        return plain.float() if plain.dtype is self.torch.bfloat16 else plain


def runner_of(query: Query, place: Any = lambda site: "") -> TorchRunner:
    """The runner that runs the passes of a trace again."""
    return TorchRunner(place, query.trace.meta.get("engine") != "torch")


class Replay:
    """One run of a plan: `tensors` are all tensors so far, by number; `leaves` are those whose gradients are
    computed."""

    def __init__(self, runner: TorchRunner, plan: Plan, edits: Edits, graph: Graph | None) -> None:
        self.runner, self.plan, self.edits, self.graph = runner, plan, edits, graph
        self.torch = runner.torch
        self.until = monotonic() + _SECONDS
        self.tensors: dict[int, torch.Tensor] = {}
        self.leaves: list[tuple[int, torch.Tensor]] = []
        self.checksums: dict[int, int] = {}
        self.small: dict[tuple[int, int], np.ndarray] = {}
        self.first_bad: dict[bool, tuple[int, tuple[int, ...]]] = {}
        self.made: dict[tuple[int, int], np.ndarray] = {}
        self.nodes: dict[int, Flowed] = {}

    def outcome(self) -> Outcome:
        """The results of the plan."""
        self.make_calls()
        roots = [self.tensor(number) for number in self.plan.roots]
        if self.edits.sample is not None and self.edits.loss is not None:
            roots = [without_one(self, self.edits.loss, self.edits.sample)]
        if self.graph is not None:
            for number, fn in self.nodes_of(self.graph, roots).items():
                fn.register_hook(partial(self._flowed, number))
        gradients = {
            leaf: None if gradient is None else self.runner.array_of(gradient)
            for leaf, gradient in self.gradients(roots, self.starts(roots)).items()
        }
        values = dict(zip(self.plan.roots, map(self.runner.array_of, roots), strict=True))
        return Outcome(values, gradients, self.checksums, self.small, self.first_bad, self.made, self.nodes)

    def make_calls(self) -> None:
        """Make the calls of the plan, with their inputs."""
        with ExitStack() as contexts:
            context = ""
            for step in self.plan.steps:
                if isinstance(step, Input):
                    self._enter(step)
                    continue
                if monotonic() > self.until:
                    raise ReplayError(f"the replay takes more than {_SECONDS:.0f} seconds: it was given up")
                asked = self._context(step)
                if asked != context:
                    contexts.close()
                    self._begin_context(contexts, asked)
                    context = asked
                self.call(step)

    def _context(self, call: Call) -> str:
        """The state that a call has to depend on besides its arguments."""
        parts = call.context.split()
        return " ".join(part for part in parts if part != WITHOUT_GRAD or call.event not in self.edits.with_grad)

    # --- inputs

    def _enter(self, step: Input) -> None:
        """Add a kept value, or its edited replacement, to the tensors."""
        value = step.value
        array = self.edits.values.get(step.tensor, value.array)
        assert array is not None
        dtype = self.runner.dtype(value.dtype)
        if self.edits.dtype and value.dtype in _WIDENING:
            dtype = self.runner.dtype(self.edits.dtype)
        try:
            whole = self.torch.from_numpy(np.array(array)).reshape(value.shape)
            tensor = whole.to(self.runner.device(value.device), dtype)
            tensor.requires_grad_(step.wants_gradient)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ReplayError(f"t{step.tensor} cannot be what it was: {_first_line(error)}") from error
        if step.wants_gradient:
            self.leaves.append((step.tensor, tensor))
        self.tensors[step.tensor] = tensor

    # --- calls

    def call(self, call: Call) -> None:
        """Make a call, and note its results."""
        if call.event in self.edits.without:
            for number in call.outputs:
                self.tensors[number] = self.tensor(call.inputs[0])
            return
        result = self._result(call)
        outputs = tensors_returned(result, self.torch.Tensor)
        if len(outputs) != len(call.outputs):
            raise self.refused(call, f"returns {len(outputs)} tensors now, and {len(call.outputs)} then")
        for number, output in zip(call.outputs, outputs, strict=True):
            if number in self.edits.results:
                elements, places = map(self.torch.from_numpy, self.edits.results[number])
                device = output.device
                output = self.torch.where(places.to(device), elements.to(device, output.dtype), output)
            self.tensors[number] = output
        self._note(call)

    def _result(self, call: Call) -> Any:
        name = call.function
        if self.edits.dtype and name in _TO_FLOAT:
            name = "Tensor.double" if self.edits.dtype == "float64" else "Tensor.float"
        function: Any = self.runner.functions.get(name)
        if function is None:
            raise self.refused(call, "is not among the functions that a replay may call")
        positional, named = call.arguments
        try:
            args = [self.value(part, call) for part in positional]
            kwargs = {key: self.value(part, call) for key, part in named.items()}
            if not self.runner.is_pytorch:  # it does without the arguments that PyTorch has given up
                kwargs = {key: part for key, part in kwargs.items() if part is not None}
            if call.generator is None:
                return function(*args, **kwargs)
            return self._random_result(call, function, args, kwargs)
        except _REFUSALS as error:
            raise self.refused(call, f"cannot be called: {_first_line(error)}") from error

    def _random_result(self, call: Call, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The result of a call with the random numbers that it had."""
        state = self.torch.from_numpy(np.array(call.generator, np.uint8))
        device = self.tensor(call.inputs[0]).device
        set_state = (
            self.torch.set_rng_state if device.type != "cuda" else lambda s: self.torch.cuda.set_rng_state(s, device)
        )
        get_state = self.torch.get_rng_state if device.type != "cuda" else lambda: self.torch.cuda.get_rng_state(device)
        set_state(state)
        if not self.edits.dtype:
            return function(*args, **kwargs)
        if is_dropout(call.function) and "alpha" not in call.function:
            return self._widened_dropout(call, function, args, kwargs)
        result = function(*args, **kwargs)
        if not self.torch.equal(get_state(), state):
            raise self.refused(call, f"draws other random numbers in {self.edits.dtype}")
        return result

    def _widened_dropout(self, call: Call, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A dropout in another dtype than the recorded one, which drops the same elements."""
        x = args[0] if args else kwargs["input"]
        ones = self.torch.ones_like(x, dtype=self.runner.dtype(call.dtype), requires_grad=False)
        rest = {key: part for key, part in kwargs.items() if key not in ("input", "inplace")}
        with self.torch.no_grad():
            kept = function(ones, *args[1:], **rest)
        if bool((kept == 1).all()):
            return x * 1
        share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        return x * (kept != 0) / (1 - share) if share < 1 else x * 0

    def _note(self, call: Call) -> None:
        """Note the results of a call, to be compared with the recording."""
        checksum = 0
        for number in dict.fromkeys((*call.outputs, *call.written)):
            tensor = self.tensors.get(number)
            if tensor is None:
                continue
            array = self.runner.array_of(tensor)
            checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), checksum)
            self._note_bad(call, array)
            if array.size <= SMALL:
                self.small[call.event, number] = array
            if self.graph is not None:
                self.made[call.event, number] = array
        self.checksums[call.event] = checksum

    def _note_bad(self, call: Call, array: np.ndarray) -> None:
        """Note the first call that returns a NaN, and the first that returns an infinity."""
        if array.dtype.kind not in "fc" or np.isfinite(array).all():
            return
        for is_nan, places in ((True, np.isnan(array)), (False, np.isinf(array))):
            if places.any():
                self.first_bad.setdefault(is_nan, (call.event, indices_of(places)))

    # --- the gradients

    def gradients(
        self, roots: Sequence[torch.Tensor], starts: Sequence[torch.Tensor | None], retain_graph: bool = False
    ) -> dict[int, torch.Tensor | None]:
        """The gradients of the leaves, from roots. A leaf that entered at several versions gets the sum, as in
        PyTorch. Raises ReplayError if they cannot be computed."""
        if not any(root.requires_grad for root in roots):
            raise ReplayError("the loss leads to nothing that requires a gradient: no backward pass is possible")
        try:
            produced = self.torch.autograd.grad(
                roots, [leaf for _, leaf in self.leaves], starts, retain_graph, allow_unused=True,
                materialize_grads=False,
            ) if self.leaves else ()  # fmt: skip
        except _REFUSALS as error:
            raise ReplayError(f"the backward pass cannot run: {_first_line(error)}") from error
        gradients: dict[int, torch.Tensor | None] = {}
        for (number, _), gradient in zip(self.leaves, produced, strict=True):
            before, now = gradients.get(number), None if gradient is None else gradient.detach()
            gradients[number] = now if before is None else before if now is None else before + now
        return gradients

    def starts(self, roots: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The initial gradients of the pass at its roots."""
        return [
            None if start is None else self.torch.from_numpy(np.array(start)).to(root.device, root.dtype)
            for start, root in zip(self.plan.starts, roots, strict=True)
        ]

    def nodes_of(self, graph: Graph, roots: Sequence[torch.Tensor]) -> dict[int, Any]:
        """The nodes that the recording has, by their numbers there: both graphs are walked side by side."""
        waiting = list(zip(graph.roots, [root.grad_fn for root in roots], strict=True))
        fns: dict[int, Any] = {}
        while waiting:
            number, fn = waiting.pop()
            if fn is None or number in fns or fn.name().rpartition("::")[2] != graph.names.get(number):
                continue
            fns[number] = fn
            targets = [target for target, _ in fn.next_functions]
            edges = graph.edges.get(number, ())
            if len(edges) == len(targets):
                waiting += zip(edges, targets, strict=True)
        return fns

    def sent(self, fn: Any, position: int, upstream: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """The gradient that a node sends along one of its edges, given the gradients of its first outputs. Raises
        ReplayError for a node that is None or cannot run by itself."""
        if fn is None:
            raise ReplayError("the pass went through other nodes than the replay")
        received: list[torch.Tensor | None] = [None] * len(fn._input_metadata)
        for nr, gradient in enumerate(upstream):
            received[nr] = None if gradient is None else _formed(gradient, fn._input_metadata[nr])
        try:
            produced = fn(*received)
        except _REFUSALS as error:
            raise ReplayError(f"{fn.name()} cannot run by itself: {_first_line(error)}") from error
        sent: torch.Tensor | None = produced[position] if isinstance(produced, tuple) else produced
        if sent is None:
            raise ReplayError(f"{fn.name()} sends no gradient this way")
        target, output = fn.next_functions[position]
        return _formed(sent, target._input_metadata[output])

    def _flowed(self, number: int, produced: Sequence[Any], received: Sequence[Any]) -> None:
        array_of = self.runner.array_of
        arrays = (tuple(None if part is None else array_of(part) for part in side) for side in (received, produced))
        self.nodes[number] = Flowed(*arrays)

    # --- arguments

    def tensor(self, number: int) -> torch.Tensor:
        """A tensor by its number. Raises ReplayError if there is none."""
        try:
            return self.tensors[number]
        except KeyError:
            raise ReplayError(f"t{number} is missing: the trace is damaged") from None

    def value(self, tree: Any, call: Call) -> Any:
        """The value of a part of the arguments. Raises ReplayError for a part of unknown form."""
        kind, of = argument_of(tree, call)
        if kind == "plain":
            number, tensor = self.edits.numbers.get(call.event, (None, 0))
            return self.tensor(tensor) if type(of) is float and of == number else of
        if kind == "tensor":
            return self.tensor(of)
        if kind in self.runner.named:
            return self._named(kind, of)
        parts = [self.value(part, call) for part in of]
        if kind == "list":
            return parts
        return tuple(parts) if kind == "tuple" else _OF_PARTS[kind](*parts)

    def _named(self, kind: str, name: str) -> Any:
        if kind == "device":
            return self.runner.device(name)
        if kind == "dtype" and self.edits.dtype and name in _WIDENING:
            name = self.edits.dtype
        value = getattr(self.torch, name, None)
        if not isinstance(value, self.runner.named[kind]):
            raise ReplayError(f"there is no {kind} of that name: the trace is damaged")
        return value

    def _begin_context(self, contexts: ExitStack, context: str) -> None:
        """Set the state that calls depend on besides their arguments: autocast, default dtype."""
        settings = settings_of(context)
        self.torch.set_default_dtype(self.runner.dtype(settings.default))
        if not settings.has_grad_mode:
            contexts.enter_context(self.torch.no_grad())
        for device, name in settings.autocast.items():
            dtype = self.runner.dtype(name)
            if not self.edits.dtype:
                contexts.enter_context(self.torch.autocast(self.runner.device(device).type, dtype))

    def refused(self, call: Call, why: str) -> ReplayError:
        """The error with the reason why the plan cannot run, with the call and its place."""
        return ReplayError(f"{call.function}{self.runner.place(call.site)} {why}")


_OF_PARTS: dict[str, Any] = {"slice": slice, "complex": complex}


def _formed(gradient: torch.Tensor, form: Any) -> torch.Tensor:
    """A gradient in the form that a node expects, as PyTorch makes it between nodes."""
    return gradient.sum_to_size(form.shape).to(form.device, form.dtype)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


_OF_CLASSES = frozenset(("cross_entropy", "nll_loss", "linear_cross_entropy"))


def scaled(replay: Replay, last: Call, parts: torch.Tensor) -> torch.Tensor:
    """The parts of a loss, scaled as the pass scales the loss before its root."""
    for call in scalings_of(replay.plan):
        replay.tensors[last.outputs[0]] = parts
        replay.call(call)
        parts, last = replay.tensor(call.outputs[0]), call
    return parts


def parts_of(replay: Replay, last: Call) -> torch.Tensor:
    """The parts of the loss that a call made, one for each index of the first dimension; their sum is the loss."""
    loss = replay.tensor(last.outputs[0])
    positional, named = last.arguments
    if last.op in REDUCTIONS:
        elements = replay.value(positional[0] if positional else named["input"], last)
    else:
        unreduced = last._replace(arguments=[positional, {**named, "reduction": "none"}], outputs=(-1,))
        replay.call(unreduced)
        elements = replay.tensor(-1)
    if elements.ndim == 0:
        raise replay.refused(last, "has one element only: there is no batch")
    by_sample = elements.flatten(1).sum(1) if elements.ndim > 1 else elements
    total, parts = float(loss.detach()), by_sample * _share(replay, last, elements.numel())
    # A NaN is the sum of any parts with a NaN: then the kind of the loss decides whether it is weighted.
    if np.isfinite(total):
        is_weighted = not np.isclose(float(parts.detach().sum()), total, rtol=1e-3, atol=1e-12)
    else:
        is_weighted = _has_weights(last)
    if is_weighted:
        raise replay.refused(last, "weights its terms: they cannot be told apart")
    return parts


def _has_weights(last: Call) -> bool:
    """Whether a loss is a mean whose terms have different weights: by class, or by the lengths of targets."""
    named = last.arguments[1]
    is_weighted = last.op == "ctc_loss" or (last.op in _OF_CLASSES and named.get("weight") is not None)
    return is_weighted and named.get("reduction", "mean") == "mean"


def _share(replay: Replay, last: Call, count: int) -> float:
    """The factor of each element in a loss: 1 in a sum, 1/count in a mean. Targets that a loss ignores do not count."""
    positional, named = last.arguments
    if last.op == "sum" or named.get("reduction") == "sum":
        return 1.0
    target = positional[1] if len(positional) > 1 else named.get("target")
    if "ignore_index" in named and target is not None:
        count = int((replay.value(target, last) != named["ignore_index"]).sum())
    return 1 / max(count, 1)


def without_one(replay: Replay, last: Call, index: int) -> torch.Tensor:
    """The loss without one index of its first dimension; for a mean, the mean of the others. Raises ReplayError."""
    parts = parts_of(replay, last)
    count = len(parts)
    if not -count <= index < count:
        raise replay.refused(last, f"has {count} parts, from 0 to {count - 1}: there is no {index}")
    if count == 1:
        raise replay.refused(last, "has one part only: nothing is left without it")
    rest = [at for at in range(count) if at != index % count]
    total = parts[rest].sum()
    if last.op == "sum" or last.arguments[1].get("reduction", "mean") != "mean":
        return scaled(replay, last, total)
    counted = _counted(replay, last, count)
    others = sum(counted[at] for at in rest)
    if not others:
        raise replay.refused(last, f"ignores all others: nothing is left without {index}")
    return scaled(replay, last, total * (sum(counted) / others))


def _counted(replay: Replay, last: Call, count: int) -> list[int]:
    """The number of elements that count in a mean, for each index of the first dimension, in any unit. Targets that a
    loss ignores do not count."""
    positional, named = last.arguments
    target = positional[1] if len(positional) > 1 else named.get("target")
    if last.op in REDUCTIONS or "ignore_index" not in named or target is None:
        return [1] * count
    is_counted = replay.value(target, last) != named["ignore_index"]
    return [int(row.sum()) for row in is_counted.reshape(count, -1)]
