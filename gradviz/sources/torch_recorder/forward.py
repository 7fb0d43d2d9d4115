"""The forward side: a mode that sees each call that the program makes of PyTorch, and emits those that are ops.

PyTorch hands a call on to a mode by the function's public name. Where a program has wrapped that function, the name
leads to the wrapper, which has already run and would run twice: the mode calls the function that it wraps."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from gradviz.events.kinds import VIEW, WHOLE
from gradviz.events.listener import Where, edges_of
from gradviz.sources.torch_recorder import calls
from gradviz.sources.torch_recorder.arguments import OPERANDS, outputs_of, tensors_in
from gradviz.sources.torch_recorder.calls import Steps, Way, finish
from gradviz.sources.torch_recorder.identity import name_of_hook, outside
from gradviz.sources.torch_recorder.inline_cache import Call, InlineCache
from gradviz.sources.torch_recorder.known_things import Known, grad_fn_of, unbatched, version_of
from gradviz.sources.torch_recorder.linear import tell_linear
from gradviz.sources.torch_recorder.node_formulas import described, rule_of_node
from gradviz.sources.torch_recorder.pytorchs_own import is_floating_point
from gradviz.sources.torch_recorder.shared import PYTORCH, Source, in_transform, is_pytorchs, safely
from gradviz.sources.torch_recorder.tensor_values import PLAIN, READER, local_part


class Attributes:
    """Emits the program's uses of attributes and hooks of tensors, and what it reads, to a source's listener."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.identity = source.identity

    def ways(self) -> dict[str, Way]:
        """The function that handles each sort of call."""
        return {
            calls.GET_GRAD: self._get_grad,
            calls.SET_DATA: self._set_data,
            calls.SET_GRAD: self._set_grad,
            calls.SET_REQUIRES_GRAD: self._require,
            calls.REQUIRE: self._require,
            calls.RETAIN: self._retain,
            calls.HOOK: self._hook,
            calls.READ: self._read,
        }

    def _set_data(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        tensor, value = args
        if value is tensor:  # for example `model.to("cpu")` on the CPU
            yield
            return
        number = self.identity.number_of(tensor, frame)
        yield
        source = self.identity.number_of(value, frame)
        READER.recent.clear()
        known = self.identity.known[id(tensor)]
        known.base, known.alias = source, VIEW | WHOLE
        state = self.identity.state_of(tensor)._replace(tensor=number)
        self.source.listener.mutated(frame, "data", state, source, self.source.in_pass)

    def _get_grad(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        result = yield
        tensor = args[0]
        if result is None and not tensor.is_leaf and not tensor.retains_grad and not is_pytorchs(frame):
            self.source.listener.grad_read(frame, self.identity.number_of(tensor, frame))

    def _read(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        """Handle a read of numbers: `item`, `float()`. PyTorch's own reads are none of the program's."""
        yield
        known = self.identity.known.get(id(args[0]))
        if known is None or not (args[0].requires_grad or known.depends) or not self.source.is_detailed:
            return
        reader = outside(frame, torch.overrides.__file__, f"{PYTORCH}_tensor.py")
        if reader is not None and not is_pytorchs(reader):
            self.source.listener.number_read(reader, known.number, calls.READS[name])

    def _set_grad(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        yield
        tensor, value = (*args, None)[:2]  # `del tensor.grad` has no value
        number = self.identity.number_of(tensor, frame)
        grad = 0 if value is None else self.identity.number_of(value, frame)
        self.source.listener.grad_assigned(frame, number, grad)

    def _require(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        """Handle `requires_grad_`, `detach_`, or an assignment to `requires_grad`."""
        tensor = args[0]
        if self.identity.pending and tensor.grad_fn is None:  # a leaf from before the change
            self.identity.tell_pending()
        before, result = (tensor.requires_grad, tensor.is_leaf), 0
        if name == "detach_" and not tensor.is_leaf:
            result = self.identity.number_of(tensor, frame)
        yield
        if result and tensor.is_leaf:
            self.identity.announce_alias(tensor, name, frame, result)
        elif (tensor.requires_grad, tensor.is_leaf) != before:
            is_entering = in_transform() and id(tensor) not in self.identity.known
            self.identity.number_of(tensor, frame)
            if is_entering:
                return  # it stands for another tensor, and is told as it is now
            self.source.listener.requires_grad_changed(frame, self.identity.state_of(tensor)._replace(value=None))

    def _retain(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        """Handle `retain_grad`: note which output of which node keeps its gradient."""
        yield
        tensor = args[0]
        if tensor.grad_fn is not None:
            self.identity.number_of(tensor, frame)
            record = self.identity.record_of(tensor.grad_fn)
            record.retained = record.retained or {}
            record.retained[tensor.output_nr] = self.identity.known[id(tensor)]

    def _hook(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        """Handle `register_hook`: note that the tensor has a hook."""
        yield
        tensor = args[0]
        self.identity.number_of(tensor, frame)
        self.identity.hooked[id(tensor)] = self.identity.known[id(tensor)]
        if tensor.grad_fn is not None:
            record = self.identity.record_of(tensor.grad_fn)
            record.hooks += (name_of_hook(args[1] if len(args) > 1 else kwargs["hook"]),)


_HANDS_ON = torch.overrides.handle_torch_function.__code__
_MOST_STEPS = 8  # from a wrapper to what it wraps
_MOST_REACHED = 200_000  # objects
_known: dict[CodeType, Any] = {}  # functions by their code, if exactly one function has that code


def original_of(func: Any, frame: FrameType) -> Any:
    """PyTorch's function behind `func`, as called in `frame`, which called the mode. `func` itself if it is
    PyTorch's, or if no better one is known."""
    if _is_pytorchs(func):
        return func
    if frame.f_code is not _HANDS_ON:
        return _written_in_c(func)
    return func if frame.f_back is None else _function_of(frame.f_back, func) or func


def _is_pytorchs(func: Any) -> bool:
    code = getattr(func, "__code__", None)
    if isinstance(code, CodeType):
        return code.co_filename.startswith(PYTORCH)
    bound_to = getattr(func, "__self__", None)
    if isinstance(bound_to, property):  # func is its __get__, __set__ or __delete__
        return _is_pytorchs(bound_to.fget)
    module = type(func).__module__
    return module in ("builtins", "types") or module.partition(".")[0] == "torch"


def _function_of(frame: FrameType, wrapper: Any) -> Any:
    """The function that runs in a frame, below a wrapper; None if it cannot be identified."""
    code = frame.f_code
    if code in _known:
        return _known[code]
    functions = [one for one in gc.get_referrers(code) if type(one) is FunctionType and one.__code__ is code]
    if not functions:  # the garbage collector does not know objects that were frozen
        above = frame.f_back
        functions = _reached(code, [wrapper] if above is None else [wrapper, above.f_locals, above.f_globals])
    if len(functions) == 1 and not (code.co_freevars and gc.get_freeze_count()):
        _known[code] = functions[0]
        return functions[0]
    names = frame.f_locals  # functions with the same code differ in what they enclose
    for function in functions:
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        if all(name in names and cell.cell_contents is names[name] for name, cell in cells):
            return function
    return None


def _reached(code: CodeType, roots: list[Any]) -> list[Any]:
    """The functions with some code that the fewest references lead to from roots, not through modules."""
    seen: set[int] = set()
    found: dict[int, Any] = {}
    reached = roots
    for _ in range(_MOST_STEPS):
        fresh = {id(one): one for one in reached if id(one) not in seen and not issubclass(type(one), ModuleType)}
        seen.update(fresh)
        reached = gc.get_referents(*fresh.values())
        found = {id(one): one for one in reached if type(one) is FunctionType and one.__code__ is code}
        if found or len(seen) > _MOST_REACHED:
            break
    return list(found.values())


def _written_in_c(func: Any) -> Any:
    """The method or attribute of tensors that `func`, or the property that it belongs to, has replaced."""
    put_there = getattr(func, "__self__", None)
    replaced: Any = put_there if isinstance(put_there, property) else func
    for name, value in vars(torch.Tensor).items():
        if value is replaced:
            original = getattr(torch._C.TensorBase, name, func)
            return getattr(original, func.__name__) if replaced is put_there else original
    return func


# PyTorch's code that makes fake tensors of real ones. What it calls is no call of the program's, which never sees them.
_OF_FAKES = os.path.join(PYTORCH, "_subclasses", "")
_Plain = torch._C.DisableTorchFunction
_modes_below = torch._C._len_torch_function_stack


class Forward(TorchFunctionMode):
    """Emits the calls of its thread to a source's listener."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.identity = source.identity
        self.sorts: dict[Any, tuple[str, str]] = {}
        self.cache = InlineCache(source, self._note_view)
        self.ways: dict[str, Way] = {
            calls.OP: self._op,
            calls.LINEAR: self._linear,
            calls.MAKER: self._maker,
            calls.FILL: self._fill,
            calls.DATA: self._op,
            calls.MAKE_DUAL: self._make_dual,
            **Attributes(source).ways(),
        }
        # The ways that the cache replaces. Others may put their own ways there, which then see all calls.
        self.cached_ways = {sort: self.ways[sort] for sort in (calls.OP, calls.LINEAR)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_compiling():  # a function that was compiled before the recording
            return func(*args, **(kwargs or {}))
        if not _modes_below():
            return self._tell_of(func, func, types, args, kwargs or {}, sys._getframe(1))
        unheard = _Plain()
        with unheard:  # the program's modes see only the call, not our reads
            return self._tell_of(func, _Heard(func, unheard), types, args, kwargs or {}, sys._getframe(1))

    def _tell_of(
        self, func: Any, made: Callable[..., Any], types: Any, args: Any, kwargs: Any, frame: FrameType
    ) -> Any:
        """The result of a call of `func`, which is emitted; `made` is the function that makes the call."""
        steps = call = None
        is_of_matrix = False
        try:
            try:
                known = self.sorts.get(func)
            except TypeError:  # a wrapper that cannot be hashed
                known = None
            if known is None:
                original = original_of(func, frame)
                made = made.of(original) if isinstance(made, _Heard) else original
                func = original
                known = self.sorts.get(func) or self.sorts.setdefault(func, calls.sort_of(func))
            sort, name = known
            if sort is not calls.PASS:
                plain = not types or PLAIN.issuperset(types)
                is_cached = plain and self.ways[sort] is self.cached_ways.get(sort)
                if is_cached:
                    call = self.cache.begin(func, args, kwargs, frame)
                if (
                    call is None
                    and not self.source.is_silent
                    and not (is_cached and not self.source.is_detailed)
                    and not frame.f_code.co_filename.startswith(_OF_FAKES)
                ):
                    if is_cached and sort is calls.LINEAR and _is_of_matrix(args):
                        is_of_matrix = True
                    else:
                        way = self.ways[sort] if plain else _of_subclass(self.ways[sort])
                        steps = way(func, name, args, kwargs, frame)
                        next(steps)
        except Exception as error:
            self.source.gave_up(error)
        result = made(*args, **kwargs)
        if call is not None:
            try:
                self._end(call, func, name, args, kwargs, result, frame)
            except Exception as error:
                self.source.gave_up(error)
        elif is_of_matrix:
            try:
                self._ran_linear(name, args, kwargs, result, frame)
            except Exception as error:
                self.source.gave_up(error)
        elif steps is not None:
            try:
                steps.send(result)
            except StopIteration:
                pass
            except Exception as error:
                self.source.gave_up(error)
        return result

    # --- ops

    def put_around(self, sort: str, around: Callable[[Way], Way]) -> None:
        """Put a way around the way of a sort of calls. It sees all calls, also those that the cache emits."""
        way = self.ways[sort]
        if way is self.cached_ways.get(sort):
            way = self._cached(way)
        self.ways[sort] = around(way)

    def _cached(self, way: Way) -> Way:
        """A way that emits a call from the cache where the last call at its place was alike, and else as `way` does."""

        def run(func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
            call = self.cache.begin(func, args, kwargs, frame)
            if call is None:
                yield from way(func, name, args, kwargs, frame)
                return
            result = yield
            self._end(call, func, name, args, kwargs, result, frame)

        return run

    def _end(self, call: Call, func: Any, name: str, args: Any, kwargs: Any, result: Any, frame: FrameType) -> None:
        """Emit a call that an entry of the cache matched before it was made."""
        if not self.cache.end(call, result, frame):
            _, inputs, _, before = call
            self._ran(func, name, args, kwargs, inputs, before, result, frame)
        elif name == "batch_norm" and func in calls.RUNNING:
            self._tell_running(name, calls.running_statistics(func, args, kwargs), frame)

    def _op(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        if not self.source.is_detailed:
            yield
            return
        inputs = tensors_in(args, kwargs)
        identity = self.identity
        if inputs and (calls.writes(name) or "out" in kwargs):
            if identity.pending and identity.is_pending(inputs[0]) and is_in_layer(frame):
                yield  # a layer fills its parameters
                return
            for tensor in inputs:
                identity.number_of(tensor, frame)
        before = [version_of(tensor) for tensor in inputs]
        if name.startswith("_foreach") and calls.writes(name) and args:
            before = _as_written(args[0], inputs, before)
        result = yield
        self._ran(func, name, args, kwargs, inputs, before, result, frame)

    def _ran(
        self, func: Any, name: str, args: Any, kwargs: Any, inputs: list[torch.Tensor], before: list[int],
        result: Any, frame: FrameType,
    ) -> None:  # fmt: skip
        """Emit a call that was made without a cache hit; `before` are the versions of the inputs before it."""
        identity = self.identity
        outputs = [result] if isinstance(result, torch.Tensor) else outputs_of(result)
        if name == "setitem":
            outputs = inputs[:1]
        if not outputs:
            if name in calls.UNCOUNTED:
                READER.recent.clear()
                written = [(tensor, identity.number_of(tensor, frame)) for tensor in args[0]]
                self._tell_written(name, written, (), frame)
            return
        if not inputs:
            self._made(name, outputs, frame)
            return
        if name in calls.PASSING_ON:
            self._tell(name, args, kwargs, *_without_passed_on(inputs, before, outputs), frame)
            return
        self._tell(name, args, kwargs, inputs, before, outputs, frame)
        self.cache.learn(func, name, args, kwargs, inputs, result, frame)
        if func in calls.RUNNING:
            self._tell_running(name, calls.running_statistics(func, args, kwargs), frame)

    def _linear(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        if not _is_of_matrix(args) or not self.source.is_detailed:
            yield from self._op(func, name, args, kwargs, frame)
            return
        result = yield
        self._ran_linear(name, args, kwargs, result, frame)

    def _ran_linear(self, name: str, args: Any, kwargs: Any, result: Any, frame: FrameType) -> None:
        """Emit a `linear` of a matrix."""
        if self.identity.pending:
            self.identity.tell_pending()
        for tensor in args:
            if id(tensor) not in self.identity.known:
                self.identity.number_of(tensor, frame)
        if not tell_linear(self.source, args, result, frame):
            self._tell(name, args, kwargs, args, [version_of(tensor) for tensor in args], [result], frame)

    def _tell(
        self, name: str, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor], before: Sequence[int],
        outputs: Sequence[torch.Tensor], frame: FrameType, with_tangents: bool = True,
    ) -> None:  # fmt: skip
        """Emit an op that ran."""
        identity = self.identity
        if identity.pending:
            identity.tell_pending()
        known = identity.known.get
        numbers = [
            one.number if (one := known(id(tensor))) is not None else identity.number_of(tensor, frame)
            for tensor in inputs
        ]
        written = self._written(inputs, numbers, before)
        input_ids = {id(tensor) for tensor in inputs}
        fresh = [tensor for tensor in outputs if id(tensor) not in input_ids]
        in_place = [tensor for tensor, _ in written if any(tensor is output for output in outputs)]
        results = [*in_place, *fresh]
        if not results:
            self._tell_written(name, written, in_place, frame)
            return
        first = results[0]
        if name == "matmul" and len(inputs) == 2:
            name = calls.PRODUCTS.get((inputs[0].ndim, inputs[1].ndim), name)
        floating = is_floating_point(first) or is_floating_point(inputs[0])  # a comparison gives bools
        if name in OPERANDS and len(inputs) == 1 and len(args) == 2:
            numbers.insert(0 if args[0] is not inputs[0] else 1, 0)
        text, rule = described(name, args, kwargs, floating, len(numbers))
        states = [identity.state_of(tensor) for tensor in in_place]
        states += [self._state_of_new(name, tensor, inputs) for tensor in fresh]
        fn = grad_fn_of(first) if len(results) == 1 else None
        if fn is not None and not written:
            nodes = identity.new_nodes((fn,))
            if len(nodes) == 1:
                self._tell_one(name, text, rule, numbers, inputs, first, states[0], nodes[0], frame)
                if with_tangents:
                    self._tell_tangents(name, fresh, frame)
                return
        else:
            nodes = []
        for tensor in results:
            identity.known[id(tensor)].version = version_of(tensor)
        identity.note_dependence(inputs, results)
        # The place is looked up once for an op and its several nodes.
        where: Where = self.source.place(frame) or frame if nodes else frame
        self.source.listener.op(
            where, name, text, rule, self.source.in_pass, is_grad_enabled(), numbers,
            [state.tensor for state in states], [state.value for state in states], [state.flags for state in states],
            [state.version for state in states], [state.base for state in states],
        )  # fmt: skip
        self._tell_written(name, written, in_place, frame)
        roots = [tensor for tensor in (*results, *self._bases(in_place)) if unbatched(tensor).requires_grad]
        if nodes:
            identity.put_outputs(roots)
            identity.tell_numbered(where, nodes, -1, (*inputs, *outputs), rule)
        elif roots:
            identity.tell_nodes(frame, roots, -1, (*inputs, *outputs), rule)
        if with_tangents:
            self._tell_tangents(name, results, frame)

    def _tell_one(
        self, name: str, text: str, rule: Any, numbers: Sequence[int], inputs: Sequence[torch.Tensor],
        out: torch.Tensor, state: Any, node: Any, frame: FrameType,
    ) -> None:  # fmt: skip
        """Emit an op that made one tensor and one node."""
        fn, record, nexts = node
        rule = rule if rule.inputs else rule_of_node(fn, record.name, len(nexts))
        nr, enabled = unbatched(out).output_nr, is_grad_enabled()
        record.put(nr, state.tensor)
        identity = self.identity
        edges = identity.edges_of(nexts, numbers)
        saved = identity.saved.by(fn, (*inputs, out))
        listener = self.source.listener
        if nr or not enabled:
            listener.op(
                frame, name, text, rule, self.source.in_pass, enabled, numbers, (state.tensor,), (state.value,),
                (state.flags,), (state.version,), (state.base,),
            )  # fmt: skip
            listener.node(frame, record.number, record.name, -1, rule, record.outputs(), edges_of(edges), saved)
            return
        listener.differentiated(
            frame, name, text, rule, self.source.in_pass, numbers, state.tensor, state.value, state.flags,
            state.version, state.base, record.number, record.name, edges, [part for pair in saved for part in pair],
        )  # fmt: skip

    def _state_of_new(self, name: str, tensor: torch.Tensor, inputs: Sequence[torch.Tensor]) -> Any:
        """The state of a new output, which gets its number."""
        identity = self.identity
        known = identity.fresh(tensor)
        if name in calls.ALIASES:
            known.base = identity.number_of(inputs[0])
            known.alias = VIEW | WHOLE
            if not version_of(inputs[0]):  # the result may count versions of its own
                identity.note_unfilled(known, name, known.base)
        elif tensor._is_view():
            self._note_view(tensor, known, inputs)
        if type(tensor) not in PLAIN:
            identity.note_part(tensor, known)
        return identity.state_made(tensor, known)

    def _note_view(self, tensor: torch.Tensor, known: Known, inputs: Sequence[torch.Tensor]) -> None:
        near = base = tensor._base
        for one in inputs:
            if one is base or (one._is_view() and one._base is base):
                near = one
                break
        of = self.identity.known.get(id(near))
        if of is not None:
            self.identity.note_view(tensor, known, near, of)

    # --- the tensors that an op wrote to

    def _written(
        self, inputs: Sequence[torch.Tensor], numbers: Sequence[int], before: Sequence[int]
    ) -> list[tuple[torch.Tensor, int]]:
        """The inputs that an op wrote to, with their numbers. `before` are their versions before the op."""
        after = [version_of(tensor) for tensor in inputs]
        if after == before:
            return []
        READER.recent.clear()
        compared = zip(inputs, numbers, before, after, strict=True)
        written = [(tensor, number) for tensor, number, old, new in compared if new != old]
        self.identity.unfilled.difference_update(self.identity.known[id(tensor)].base for tensor, _ in written)
        return written

    def _tell_written(
        self, name: str, written: Sequence[tuple[torch.Tensor, int]], in_place: Sequence[torch.Tensor], frame: FrameType
    ) -> None:
        """Emit the tensors that an op wrote to and that are not its outputs, and the other tensors on the same
        memory."""
        listener = self.source.listener
        identity = self.identity
        in_pass = self.source.in_pass
        for tensor, number in written:
            by_op = any(tensor is one for one in in_place)
            if not by_op:
                listener.mutated(frame, name, identity.state_of(tensor), 0, in_pass)
            for other in self._sharing(tensor):
                listener.mutated(frame, name, identity.state_of(other), number, in_pass, -1 if by_op else None)

    def _tell_running(self, name: str, statistics: Sequence[torch.Tensor], frame: FrameType) -> None:
        """Emit the running statistics that a normalisation wrote to, for which it counts no versions."""
        if statistics:
            READER.recent.clear()
            written = [(tensor, self.identity.number_of(tensor, frame)) for tensor in statistics]
            self._tell_written(name, written, (), frame)

    def _sharing(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The other known tensors that share the memory, as far as autograd knows."""
        base = tensor._base if tensor._is_view() else tensor
        known = None if base is None else self.identity.known.get(id(base))
        if known is None:
            return []
        views = [view() for view in known.views or ()]
        return [other for other in (base, *views) if other is not None and other is not tensor]

    def _bases(self, in_place: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The bases of views that were written to: they have a new place in the graph."""
        bases = [tensor._base for tensor in in_place if tensor._is_view()]
        return [base for base in bases if base is not None and id(base) in self.identity.known]

    # --- tensors that no op made

    def _maker(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        result = yield
        outputs = outputs_of(result)
        inputs = tensors_in(args, kwargs)
        fresh = [tensor for tensor in outputs if not any(tensor is one for one in inputs)]
        if fresh and grad_fn_of(fresh[0]) is not None:
            self._tell(name, args, kwargs, inputs, [version_of(t) for t in inputs], fresh, frame)
        elif fresh:
            self._made(name.strip("_"), fresh, frame, inputs)

    @safely
    def _made(
        self, name: str, tensors: Sequence[torch.Tensor], frame: FrameType, inputs: Sequence[torch.Tensor] = ()
    ) -> None:
        identity = self.identity
        if is_pytorchs(frame) and not self.source.thread.scopes:
            for tensor in tensors:
                identity.put_off(tensor, self.source.place(frame), name)
            return
        if identity.pending:
            identity.tell_pending()
        source = identity.number_of(inputs[0], frame) if inputs and name == "deepcopy" else 0
        for tensor in tensors:
            identity.announce(tensor, name, frame, source)

    def _fill(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        """Handle a function of `nn.init`: before it, a layer's own parameters have no value."""
        tensors = tensors_in(args, kwargs)
        untold = is_in_layer(frame) and not self.source.thread.scopes  # as in `_made`
        if not tensors or (untold and self.identity.is_pending(tensors[0])):
            yield
            return
        self.identity.tell_pending()
        self.identity.number_of(tensors[0], frame)
        yield
        self._tell_written(name, [(tensors[0], 0)], (), frame)

    # --- forward mode

    def _make_dual(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        result = yield
        tensor, tangent = args
        identity = self.identity
        self._tell("make_dual", (), {}, [tensor], [version_of(tensor)], [result], frame, with_tangents=False)
        identity.number_of(tangent, frame)
        self.source.listener.tangent(frame, "make_dual", identity.number_of(result), identity.state_of(tangent))

    def _tell_tangents(self, name: str, outputs: Sequence[torch.Tensor], frame: FrameType) -> None:
        """Emit the tangents of an op's outputs."""
        level = torch.autograd.forward_ad._current_level
        if level < 0:
            return
        listener = self.source.listener
        for tensor in outputs:
            try:
                tangent = torch._VF._unpack_dual(tensor, level=level).tangent
            except RuntimeError:  # under vmap it cannot be read
                continue
            if tangent is not None:
                known = self.identity.fresh(tangent)
                state = self.identity.state(tangent, known)
                listener.tangent(frame, name, self.identity.number_of(tensor), state)


class _Heard:
    """A function of PyTorch that the program's modes see, although it is called inside `unheard`, where they see
    nothing."""

    def __init__(self, func: Any, unheard: Any) -> None:
        self.func, self.unheard = func, unheard

    def of(self, func: Any) -> "_Heard":
        """The same wrapper of another function."""
        return _Heard(func, self.unheard)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.unheard.__exit__(None, None, None)
        try:
            return self.func(*args, **kwargs)
        finally:
            self.unheard.__enter__()


def _is_of_matrix(args: Any) -> bool:
    """Whether a call of `linear` has a matrix, a weight and a bias, all of them tensors, and is no transform's."""
    if len(args) != 3 or type(args[0]) is not torch.Tensor or not all(isinstance(arg, torch.Tensor) for arg in args):
        return False
    return args[0].ndim == 2 and not in_transform()


def _without_passed_on(
    inputs: Sequence[torch.Tensor], before: Sequence[int], outputs: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[int], list[torch.Tensor]]:
    """The inputs, with their versions before the call, and the outputs of a function, without those inputs that it
    returned as they are."""
    passed_on = {id(tensor) for tensor in inputs} & {id(tensor) for tensor in outputs}
    kept = [place for place, tensor in enumerate(inputs) if id(tensor) not in passed_on]
    fresh = [tensor for tensor in outputs if id(tensor) not in passed_on]
    return [inputs[place] for place in kept], [before[place] for place in kept], fresh


def _as_written(listed: Any, inputs: Sequence[torch.Tensor], versions: list[int]) -> list[int]:
    """The versions of the inputs of an op that writes to the tensors of a list. PyTorch counts no version for tensors
    that lie on several ranks: theirs are lowered by one, so that they count as written."""
    over = {id(tensor) for tensor in listed if local_part(tensor) is not None}
    return [version - (id(tensor) in over) for tensor, version in zip(inputs, versions, strict=True)]


def _of_subclass(way: Way) -> Way:
    """The same way for a call with tensors of a class that overrides calls: the class sees the call itself, and not
    our reads."""

    def run(func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        steps = way(func, name, args, kwargs, frame)
        with torch._C.DisableTorchFunctionSubclass():
            next(steps)
        result = yield
        with torch._C.DisableTorchFunctionSubclass():
            finish(steps, result)

    return run


def is_in_layer(frame: FrameType) -> bool:
    """Whether PyTorch's own code makes the call, other than `torch.nn.init` called by the program."""
    caller = outside(frame, torch.nn.init.__file__, torch.overrides.__file__)
    return caller is not None and is_pytorchs(caller)
