"""The name of a tensor in every view: its name in the source, else the expression that made it, else a name by the
tensor whose gradient, `.grad` or tangent it is, else `t` and its number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property, lru_cache

import numpy as np

from gradviz.events.kinds import TIED, Event, Kind, OpRan, PassBegan, Produced, Received, TensorMade
from gradviz.query.lookup import Lookup
from gradviz.query.names import EARLIER, Names
from gradviz.query.nodes import Nodes
from gradviz.query.ops import ARGUMENTS, INSIDE, LOSSES, written
from gradviz.query.passed_arguments import PassedArguments, readable
from gradviz.query.passes import Passes
from gradviz.query.places import Places
from gradviz.query.scopes import Scopes
from gradviz.query.short_expressions import short_expression
from gradviz.sets import contained

_TAKEN = re.compile(r"dim=(\d+), index=(-?\d+)")
# Modules that return several tensors, not only the last that they computed.
_SEVERAL = ("MultiheadAttention", "LSTM", "GRU", "RNN", "LSTMCell")
_RETURNED = "(…)"  # behind the path of a module: its result
_NEAR = 2000  # the most makers before a moment, and after it, at which a name is looked for
_DEEPEST = 3  # the most calls in calls in a name
_CUT = "…"  # in a name of which parts are left out
_NAMED_BY_READING = ("Parameter", "Buffer", EARLIER)
LONGEST = 40  # an expression up to this long may serve as the name of its result


class Labels(Lookup):
    """The names of the tensors of one trace. A long expression is cut (`torch.exp(…) + b`), unless names have to be
    exact, so that they can be typed (`is_exact`)."""

    def __init__(
        self,
        names: Names,
        nodes: Nodes,
        passes: Passes,
        places: Places,
        scopes: Scopes,
        is_exact: bool = False,
    ) -> None:
        self.names, self.nodes, self.passes, self.places = names, nodes, passes, places
        self.scopes, self.is_exact = scopes, is_exact
        super().__init__(names.trace)
        self.tensors = names.tensors
        self._arguments = PassedArguments(places)
        self.of = lru_cache(maxsize=4096)(self._of)
        self._text = lru_cache(maxsize=None)(self._expression)
        self._calls = lru_cache(maxsize=4096)(self._call_at)

    def _of(self, tensor: int) -> str:
        name = self.names.of(tensor)
        if name is not None:
            return name
        maker = self.tensors.made(tensor)
        text = self._by_maker(tensor, maker)
        is_cut = isinstance(maker, OpRan) and self._is_inner(maker) and _CUT in text
        if text and not is_cut:
            return text
        differentiated = self._differentiated(tensor)
        if differentiated:
            return f"gradient of {self._older(differentiated, tensor)}"
        owner, part = self._held.get(tensor, (0, ""))
        if owner:
            return f"{self._older(owner, tensor)}.{part}"
        return text or f"t{tensor}"

    def _by_maker(self, tensor: int, maker: Event | None) -> str:
        """The expression that made a tensor, else the call; empty if neither is short and known."""
        if isinstance(maker, TensorMade):
            return self._of_no_op(tensor, maker)
        if not isinstance(maker, OpRan):
            return ""
        if len(maker.outputs) != 1:
            return self._of_many(tensor, maker)
        if self._is_inner(maker):
            return self._call(maker, _DEEPEST)
        known = self.row_of(maker) or self._text(maker.site)
        return known or self._as_unpacked(tensor, maker) or self._of_several(maker)

    def _of_many(self, tensor: int, op: OpRan) -> str:
        """The name of one of several results of an op: `x.max(dim=1)[0]`; empty if names are exact."""
        if self.is_exact:
            return ""
        text = self._text(op.site) or self._call(op, _DEEPEST)
        return text and f"{text}[{op.outputs.index(tensor)}]"

    def _of_several(self, op: OpRan) -> str:
        """The name of the result of one of several ops of an expression. The last op of a loss gives the value of the
        expression, as `nll_loss` does in `cross_entropy(z, t)`. Other results are named by their calls, because a
        function may return an earlier result."""
        if op.site in self.names.calls:
            return self._of_module(op) or ("" if self.is_exact else self._call(op, _DEEPEST))
        if op.site in self.places.of_one_op:
            return ""
        text = self.places.expression(op.site)
        called = re.match(r"(?:\w+\.)*(\w+)\(", text)
        if called is None or called[1] not in LOSSES or not self.names.is_result(op):
            return self._call(op, _DEEPEST)
        return self._short(text)

    def _of_no_op(self, tensor: int, maker: TensorMade) -> str:
        """The name of a tensor that no op made: `x.data`; for a parameter, or a tensor from before the recording, the
        operand that reads it; else the call in the expression at its site."""
        result = self.saved_result(tensor)
        if result:
            return self._older(result, tensor)
        if maker.how in _NAMED_BY_READING:
            is_typed = self.is_exact or maker.how == EARLIER
            return self._read_as(tensor) or ("" if is_typed else self._short(self._at(maker.site)))
        base = self.tensors.base(self.tensors.after(tensor, maker.index)) if maker.how == "data" else None
        if base is not None:
            return f"{self._older(base.tensor, tensor)}.data"
        text = self._at(maker.site)
        return self._short(text) if self._is_call(text, maker) else ""

    @staticmethod
    def _is_call(text: str, maker: TensorMade) -> bool:
        """Whether an expression is the call that made a tensor: `torch.zeros(3)`."""
        return re.match(rf"(\w+\.)*{re.escape(maker.how)}\(", text) is not None and text.endswith(")")

    def saved_result(self, tensor: int) -> int:
        """The result of an op that a tensor is the saved form of, in a derivative that is differentiated again; 0 if
        there is none."""
        maker = self.tensors.made(tensor)
        if not isinstance(maker, TensorMade) or maker.how != EARLIER:
            return 0
        self.trace.reach_all()  # the tensor may be read anywhere
        read = self._first_reads.get(tensor)  # None for a tensor that no op reads
        for node in () if read is None else self.nodes.of_op(read):
            made = self.nodes.event(node)
            for edge in () if made is None else made.edges:
                source = self.nodes.event(edge.node) if edge.node and edge.tensor == tensor else None
                if source is not None and edge.nr < len(source.outputs):
                    result = source.outputs[edge.nr]
                    return result if 0 < result < tensor else 0
        return 0

    def _read_as(self, tensor: int) -> str:
        """The operand by which the first op got a parameter that no call of a module names: `layers[0].weight` of
        `F.linear(x, layers[0].weight)`; empty if it is no name, attribute or element, or is not known."""
        self.trace.reach_all()  # the parameter may be read anywhere
        event = self._first_reads.get(tensor)
        op = None if event is None else self.tensors.op(event)
        if op is None or op.in_pass:  # no operand stands for a tensor that a derivative reads
            return ""
        *_, text = ("", *self._ways_to_read(op, tensor))
        return text if len(text) <= LONGEST else ""

    def _ways_to_read(self, op: OpRan, tensor: int) -> Iterator[str]:
        """The operand by which an op got a tensor, and what the callers around it gave for that, innermost first."""
        text = self._operand(op, op.inputs.index(tensor)) or self._arguments.of_module(op.site)
        if text:
            yield text
            yield from self._arguments.outward(op.site, text)

    def _as_unpacked(self, tensor: int, maker: OpRan) -> str:
        """The variable of several that a line assigns, as `x` of `for x, y in loader`, which the first call that reads
        a tensor of this line is given; empty if it is given several of them, or none."""
        names = self.names.assigned_at(maker.site)
        if len(names) < 2:
            return ""
        self.trace.reach_all()  # the tensor may be read anywhere
        event = self._first_reads.get(tensor)
        op = None if event is None else self.tensors.op(event)
        if op is None or op.in_pass or op.site == maker.site:
            return ""
        try:
            call = ast.parse(self.places.expression(op.site), mode="eval").body
        except SyntaxError:
            return ""
        operands = [*_in_order(call), *_object_of(call)]
        given = {one.id for one in operands if isinstance(one, ast.Name)} & {*names}
        given = given or {*self._ways_to_read(op, tensor)} & {*names}
        is_spread = any(isinstance(one, ast.Starred) for one in operands)
        is_spread |= any(keyword.arg is None for keyword in getattr(call, "keywords", ()))
        return given.pop() if len(given) == 1 and not is_spread else ""

    def _operand(self, op: OpRan, position: int) -> str:
        """The operand in the source for an input of an op. If the op is all that its expression computes, the operands
        have the order of the inputs; for an op of a library function they are known from `INSIDE`."""
        try:
            expression = ast.parse(self.places.expression(op.site), mode="eval").body
        except SyntaxError:
            return ""
        if op.site in self.places.of_one_op:
            operands = _in_order(expression)
            if (
                position == 0
                and not all(map(_is_constant, operands))
                and self._may_be_a_method(expression, op)
            ):
                return ""
            tensors = [one for one in operands if not _is_constant(one)] or _object_of(expression)
            if len(operands) != len(op.inputs):
                operands, position = tensors, position if all(op.inputs) else -1
            return readable(operands[position]) if len(operands) == len(op.inputs) and position >= 0 else ""
        if not isinstance(expression, ast.Call):
            return ""
        name = (
            expression.func.attr
            if isinstance(expression.func, ast.Attribute)
            else getattr(expression.func, "id", "")
        )
        reads = INSIDE.get(name, {})
        if op.op not in reads or not self.places.ops_at(op.site) <= reads.keys():
            return ""
        argument = reads[op.op][position]
        by_name = {keyword.arg: keyword.value for keyword in expression.keywords}
        arguments = dict(zip(ARGUMENTS[name], expression.args, strict=False)) | by_name
        return readable(arguments.get(argument))

    def _may_be_a_method(self, expression: ast.expr, op: OpRan) -> bool:
        """Whether a call may be the method of its first input, which no argument stands for: `w.to(dtype)`. A function
        of an imported module is none: `torch.exp(w)`."""
        called = expression.func if isinstance(expression, ast.Call) else None
        if not isinstance(called, ast.Attribute):
            return False
        root: ast.expr = called
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return True
        return called.attr == op.op and root.id not in self._imported(self.trace.sites[op.site].place.file)

    def _imported(self, file: str) -> frozenset[str]:
        return _imported_names("\n".join(self.trace.source(file)))

    @cached_property
    def _first_reads(self) -> dict[int, int]:
        """The first op that read each tensor."""
        table = self.trace.table(Kind.OP)
        inputs = table.lists("inputs")
        tensors, first = np.unique(inputs.values, return_index=True)
        return dict(zip(tensors.tolist(), table.events[inputs.owners[first]].tolist(), strict=True))

    def _is_inner(self, op: OpRan) -> bool:
        """Whether an op is part of the derivative of a node: no expression stands for it."""
        backward_pass = self.trace.find_pass(op.in_pass) if op.in_pass else None
        return backward_pass is not None and backward_pass.site == op.site

    def _call(self, op: OpRan, depth: int) -> str:
        """An op as a call: `mul(pow(x, exponent=2), 3.0)`; empty if the name of an input is not known, or if names are
        exact and the call is too long."""
        return self._calls(op.index, depth)

    def _call_at(self, event: int, depth: int) -> str:
        op = self.tensors.op(event)
        names = [self._given(tensor, op.outputs[0], depth) for tensor in op.inputs if tensor]
        text = written(op.op, [*names, *[op.args] * bool(op.args)])
        if not all(names) or len(text) <= LONGEST or self.is_exact:
            return self._short(text) if all(names) else ""
        return self._short(written(op.op, [*names, *["…"] * bool(op.args)]))

    def _given(self, tensor: int, than: int, depth: int) -> str:
        """The name of an input of an op in a call; empty if it is not known."""
        maker = self.tensors.made(tensor) if tensor < than else None
        is_unnamed = isinstance(maker, OpRan) and len(maker.outputs) == 1 and self.names.of(tensor) is None
        if isinstance(maker, OpRan) and is_unnamed and (self._is_inner(maker) or not self._text(maker.site)):
            return self._call(maker, depth - 1) if depth else "" if self.is_exact else "…"
        name = self._older(tensor, than)
        return "" if name == f"t{tensor}" else name

    def _of_module(self, op: OpRan) -> str:
        """The result of the module whose call ended right after an op: `net.0(…)`; empty if there is none."""
        for index in range(op.index + 1, min(op.index + 3, self.trace.count)):
            self.trace.reach(index)
            if int(self.trace.kinds[index]) == Kind.SCOPE_LEFT:
                around = self.scopes.around(op.index, op.thread)
                is_module = bool(around) and around[-1].kind == "module" and bool(around[-1].name)
                is_module = is_module and around[-1].type not in _SEVERAL
                label = f"{around[-1].name}{_RETURNED}" if is_module else ""
                return label if len(label) <= LONGEST else ""
        return ""

    def row_of(self, op: OpRan) -> str:
        """The name of a row that is taken on the way to another row, in one expression: `p[0]` for `p[0, 1]`; else
        empty."""
        taken = _TAKEN.fullmatch(op.args) if op.op == "select" else None
        if taken is None or not op.inputs[0] or not self._is_taken_from(op):
            return ""
        return f"{self._older(op.inputs[0], op.outputs[0])}[{':, ' * int(taken[1])}{taken[2]}]"

    def _is_taken_from(self, op: OpRan) -> bool:
        """Whether the next op, in the same expression, takes a row from the result of an op."""
        self.trace.reach(op.index, min(op.index + 3, self.trace.count))
        for index in range(op.index + 1, min(op.index + 3, self.trace.count)):
            following = self.trace.event(index)
            if isinstance(following, OpRan):
                return following.site == op.site and following.op == op.op and following.inputs == op.outputs
        return False

    def _older(self, tensor: int, than: int) -> str:
        """The name of a tensor in the name of the tensor `than`. If the tensor is not older, it is not named as a
        gradient: it may be the gradient of `than` (in a damaged trace, its own)."""
        return self.of(tensor) if tensor < than else self.names.of(tensor) or f"t{tensor}"

    @cached_property
    def _held(self) -> dict[int, tuple[int, str]]:
        """The tensors that are at any time the `.grad` or the tangent of an older tensor: that owner, and which of the
        two."""
        owner_of: dict[int, tuple[int, str]] = {}
        for log, part in ((self.tensors.tangents, "tangent"), (self.tensors.grads, "grad")):
            pairs = zip(log.values[::-1].tolist(), log.tensors[::-1].tolist(), strict=True)
            owner_of.update(
                {held: (owner, part) for held, owner in pairs if held > owner or part == "tangent"}
            )
        return owner_of

    def _expression(self, site: int) -> str:
        """The expression at a site where one op runs; empty if it is too long to be exact."""
        return self._short(self._at(site)) if site in self.places.of_one_op else ""

    def _at(self, site: int) -> str:
        """The expression at a site; over several lines only where it may be cut."""
        return self.places.expression(site) if self.is_exact else self.places.whole_expression(site)

    def _short(self, text: str) -> str:
        """A text as a name. A long text is cut; it is empty if names are exact."""
        if self.is_exact:
            return text if len(text) <= LONGEST else ""
        return short_expression(text, LONGEST)

    def _differentiated(self, gradient: int) -> int:
        """The tensor whose gradient `gradient` is; 0 if it is not a gradient."""
        born = self.trace.born(gradient)
        event = None if born is None else self.trace.event(born)
        if isinstance(event, TensorMade) and event.how == "gradient":
            self.trace.reach(event.index, min(event.index + 64, self.trace.count))
            following = np.flatnonzero(self.trace.kinds[event.index : event.index + 64] == Kind.PASS_BEGAN)
            event = self.trace.event(event.index + int(following[0])) if len(following) else None
        if isinstance(event, PassBegan):
            roots = self.passes.with_tensors(event).roots
            return next((root.tensor for root in roots if root.gradient == gradient), 0)
        if isinstance(event, Received):
            pairs = zip(self.nodes.tensors(event.node), event.gradients, strict=False)
            return next((tensor for tensor, came in pairs if came == gradient), 0)
        if isinstance(event, Produced):
            along = zip(self.nodes.edges(event.node), event.flows, strict=False)
            return next((edge.tensor for edge, flow in along if flow.gradient == gradient), 0)
        return 0

    def _tied(self, name: str) -> int:
        """The parameter of which `name` is a further name; 0 if there is none."""
        table = self.trace.table(Kind.NAMED)
        rows = self.trace.named(table["role"], (TIED,)) & self.trace.named(table["name"], (name,))
        return int(table["tensor"][rows][0]) if rows.any() else 0

    def tensor_called(self, text: str, k: int) -> int:
        """The newest tensor of this name at event k, else the first later one; 0 if there is none."""
        named = self.names.tensor_called(text, k) or self._tied(text)
        if named or not text:
            return named
        sites = [
            number for number in self.trace.sites if text in (self._at(number), self._short(self._at(number)))
        ]
        text = self._short(text)
        table, ops = self.trace.table(Kind.TENSOR), self.trace.table(Kind.OP)
        inner = self.trace.named(ops["op"], (text.partition("(")[0],))
        if text.endswith("]"):
            inner = self.trace.named(ops["op"], ("select",))
        if text.endswith(_RETURNED):
            left = self.trace.indices(Kind.SCOPE_LEFT)
            inner = contained(ops.events, np.concatenate([left - 1, left - 2]))
        of_ops = ops.events[contained(ops.sites, sites) | inner]
        made = np.sort(np.concatenate([of_ops, table.events[contained(table.sites, sites)]]))
        until = int(np.searchsorted(made, k, side="right"))
        for event in (*made[:until][::-1][:_NEAR].tolist(), *made[until:][:_NEAR].tolist()):
            maker = self.trace.event(event)
            outputs = maker.outputs if isinstance(maker, OpRan) else (getattr(maker, "tensor", 0),)
            for tensor in outputs:
                if tensor and self.of(tensor) == text:
                    return tensor
        held = table["tensor"][self.trace.named(table["how"], _NAMED_BY_READING)].tolist()
        return next((tensor for tensor in held if self.of(tensor) == text), 0)


def _in_order(found: ast.expr) -> list[ast.expr]:
    """The operands of a call or a binary operation as they are written; none of another expression."""
    if isinstance(found, ast.BinOp):
        return [found.left, found.right]
    return (
        [*found.args, *(keyword.value for keyword in found.keywords)] if isinstance(found, ast.Call) else []
    )


def _object_of(found: ast.expr) -> list[ast.expr]:
    """The object of a method's call, which is what the method reads if no tensor is given: `w.sum(dim=1)`."""
    if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute):
        return [found.func.value]
    return []


@lru_cache(maxsize=64)
def _imported_names(source: str) -> frozenset[str]:
    """The names that a file gets by its imports, and `torch`."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError):
        nodes = []
    imports = [one for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for one in node.names]
    return frozenset({"torch", *((one.asname or one.name).partition(".")[0] for one in imports)})


def _is_constant(operand: ast.expr) -> bool:
    """Whether an operand is surely no tensor: a number, None, or a tuple of numbers."""
    parts = operand.elts if isinstance(operand, ast.Tuple | ast.List) else [operand]
    return all(isinstance(part, ast.Constant) for part in parts)
