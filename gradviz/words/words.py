"""Names for tensors, nodes, sites and derivatives. All texts are safe to print on one line of a terminal."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache

from gradviz.events.kinds import Kind, NodeMade, OpRan, PassBegan
from gradviz.query.curves import Trend, trend
from gradviz.query.moment import Moment
from gradviz.query.names import short_expression
from gradviz.query.nodes import ACCUMULATE
from gradviz.query.ops import function_name
from gradviz.query.query import Query
from gradviz.sets import distinct
from gradviz.tracefile import Trace
from gradviz.words.escape import clean
from gradviz.words.languages import texts

_GRADIENT_OF = re.compile(r"\bgradient of ([\w.\[\]]+)")  # in an argument of a call
NOT_RECORDED = "a node outside"
MOST_LISTED = 24  # the most things of one kind that are listed; the rest are counted


class Words:
    """The names of the things in one trace. `query` is an existing query of the trace; without it a new one is made.
    Exact names can be typed: a long expression is not cut."""

    def __init__(self, trace: Trace, query: Query | None = None, is_exact: bool = False) -> None:
        self.trace = trace
        self.query = Query(trace) if query is None else query
        self.is_exact = is_exact
        self.language = "en"
        # the last event that may be shown: a lesson hides the events after its question
        self.last_seen: int | None = None
        self.renamed: Mapping[int, str] = {}
        self.texts: Mapping[str, str] = {}  # translations, by the English texts
        self.called = lru_cache(maxsize=4096)(self._called)
        self._edges_of = lru_cache(maxsize=4096)(self._names_at_edges)
        self.trend = lru_cache(maxsize=1024)(self._trend)
        self._root_of_one = lru_cache(maxsize=64)(self._find_root)
        self._roots_of_pass = lru_cache(maxsize=64)(self._find_roots)

    def prepare(self) -> None:
        """Compute the tables of the whole trace now, so that later questions are answered at once."""
        query = self.query
        tables = (
            query.tensors.leaf_flags, query.tensors.grads, query.tensors.tangents, query.tensors.makers,
            query.tensors.all_writes, query.passes.numbers, query.passes.nesting, query.scopes.nesting,
            query.scopes.depths, query.memory.shared, query.names.calls, query.names.last_ops,
            query.places.of_one_op, query.places.of_events, query.nodes.leaves,
        )  # fmt: skip
        assert all(table is not None for table in tables)

    def _trend(self, leaf: int) -> Trend | None:
        return trend(self._apart, leaf) if self.last_seen is None else None

    @cached_property
    def _apart(self) -> Query:
        """A query for searches over the whole run."""
        trace = self.trace.apart()
        return self.query if trace is self.trace else Query(trace)

    # --- languages

    def speak(self, language: str) -> None:
        """Use this language for all texts from now on."""
        self.language, self.texts = language, texts(language)
        self.called.cache_clear()  # names of gradients depend on the language

    def say(self, text: str, /, **parts: object) -> str:
        """An English text in the language of this session, with its `{parts}` filled in. A text without a translation
        stays English."""
        known = self.texts.get(text, text)
        return known.format(**parts) if parts else known

    def listed(self, parts: Iterable[str]) -> str:
        """`a`, `a and b`, `a, b and c`, in the language of this session; empty if there are no parts. If there are
        very many, the first ones and the number of the others."""
        *head, last = [*parts] or [""]
        if len(head) >= MOST_LISTED:
            more = len(head) + 1 - MOST_LISTED
            head, last = head[:MOST_LISTED], self.say("{count} more", count=f"{more:,}")
        return ", ".join(head) + self.say(" and ") + last if head else last

    @cached_property
    def ops(self) -> frozenset[str]:
        """The names of the ops that ran."""
        numbers = distinct(self.trace.table(Kind.OP)["op"])
        return frozenset(self.trace.text(number) for number in numbers)

    def may_tell_of(self, event: int) -> bool:
        """Whether an event may be shown: an open question of a lesson may hide it."""
        return self.last_seen is None or event <= self.last_seen

    # --- tensors

    def rename(self, names: Mapping[int, str]) -> None:
        """Give tensors other names."""
        self.renamed = dict(names)
        self.called.cache_clear()

    def _called(self, tensor: int) -> str:
        """A tensor's name, otherwise the expression that made it, otherwise `t` and its number."""
        labels = self.query.exact_labels if self.is_exact else self.query.labels
        name = clean(self.renamed.get(tensor) or labels.of(tensor))
        owner = name.removeprefix("gradient of ")
        if owner != name:
            return self.say("gradient of {name}", name=owner)
        return _GRADIENT_OF.sub(lambda found: self.say("gradient of {name}", name=found[1]), name)

    # --- places

    def expression(self, site: int, longest: int) -> str:
        """The source of the expression at a site, cut to `longest` characters; empty if it is unknown. If names are
        exact, it is empty if it is longer or spans several lines."""
        if not self.is_exact:
            return clean(short_expression(self.query.places.whole_expression(site), longest))
        text = self.query.places.expression(site)
        return clean(text) if len(text) <= longest else ""

    def at_line(self, site: int) -> str:
        """`, line 12`, or empty if the line is unknown."""
        place = self.query.places.site(site)
        return self.say(", line {line}", line=place.place.line) if place is not None else ""

    # --- nodes

    @property
    def is_partial(self) -> bool:
        """Whether ops and nodes were left out, as by `--scope` or a choice of passes."""
        return not {"scope", "passes"}.isdisjoint(self.query.trace.meta)

    def node_name(self, node: int) -> str:
        """A node as `PowBackward0`, or `AccumulateGrad of x`."""
        name = clean(self.query.nodes.name(node)) or (NOT_RECORDED if self.is_partial else ACCUMULATE)
        leaf = self.query.nodes.leaf(node) if name == ACCUMULATE else None
        return self.say("{node} of {name}", node=name, name=self.called(leaf)) if leaf else name

    def expression_of(self, node: NodeMade | None, longest: int) -> str:
        """The expression that made a node, otherwise the name of its op; `a leaf` for None."""
        if node is None:
            return self.say("a leaf")
        op = self.query.tensors.op(node.op) if node.op >= 0 else None
        return self.expression(node.site, longest) or clean(function_name(op.op) if op is not None else node.grad_fn)

    def edges_called(self, node: NodeMade) -> list[str]:
        """The names of the tensors at a node's edges. A number is named by its value; a tensor that the program does
        not see is named by its node."""
        return self._edges_of(node.index)

    def _names_at_edges(self, event: int) -> list[str]:
        node = self.trace.event(event)
        assert isinstance(node, NodeMade)
        return [
            self.taken(edge.tensor, node.outputs) if edge.tensor else self._unseen(node, at)
            for at, edge in enumerate(node.edges)
        ]

    def _unseen(self, node: NodeMade, at: int) -> str:
        """The name of what no tensor is known of at an edge of a node: an input of its op, what another node gave,
        or a number."""
        op, maker = self.query.tensors.op(node.op) if node.op >= 0 else None, node.edges[at].node
        given = op.inputs[at] if op is not None and len(op.inputs) == len(node.edges) else 0
        if given and self._may_lead(node, maker, given):
            return self.called(given)
        if maker:
            return self.say("the output of {node}", node=self.node_name(maker))
        if not node.rule.elementwise:
            return ""
        return self._plain_number(op.args) if op is not None and 0 in op.inputs else self.say("the other input")

    def _may_lead(self, node: NodeMade, maker: int, tensor: int) -> bool:
        """Whether the edge of a node to `maker` leads to an input of its op, as far as is known. Of an op with several
        nodes, an edge to none may be that of a number in between."""
        nodes, tensors = self.query.nodes, self.query.tensors
        if not maker or tensors.is_leaf_that_requires_grad(tensor, node.index):
            return nodes.leaf(maker) == tensor if maker else len(nodes.of_op(node.op)) == 1
        made_by, is_gradient = nodes.grad_fn(tensor, node.index), tensors.made(tensor) is None
        return made_by == maker or (not made_by and (is_gradient or tensors.requires_grad(tensor, node.index)))

    def inputs_called(self, op: OpRan) -> list[str]:
        """The names of the inputs of an op; a number is named by its value."""
        return [self.taken(tensor, op.outputs) if tensor else self._plain_number(op.args) for tensor in op.inputs]

    def running(self, moment: Moment) -> int:
        """The node that is running at a moment: it has received its gradients and has not produced any yet. 0 if
        there is none."""
        backward_pass = moment.pass_info
        for index in range(moment.k, backward_pass.first if backward_pass is not None else moment.k, -1):
            kind = self.trace.kinds[index]
            if kind in (Kind.PRODUCED, Kind.ACCUMULATED):
                return 0
            if kind == Kind.RECEIVED:
                return self.trace.table(Kind.RECEIVED).object(index).node
        return 0

    def _plain_number(self, args: str) -> str:
        try:
            return f"{float(args):.6g}"
        except ValueError:
            return self.say("a number")

    # --- derivatives

    def taken(self, tensor: int, gave: Sequence[int]) -> str:
        """The name of an input `tensor` of an op with outputs `gave`: `y before` if the op changed y in place."""
        return self._earlier(self.called(tensor)) if tensor in gave else self.called(tensor)

    def _earlier(self, name: str) -> str:
        """The name of a tensor before it was changed in place."""
        return self.say("{name} before", name=name)

    def partial(self, output: int, tensor: int, name: str = "", before: bool = False, of: str = "") -> str:
        """A derivative as text: `∂y/∂x`. If both tensors have the same name, the lower one also gets its number.
        `name` is used for an unknown tensor, `of` for an unknown output. `before` means the tensor before it was
        changed in place."""
        above = self._told_from_roots(output) if output else of or self.say("output")
        below = self._told_from_roots(tensor) if tensor else name or "?"
        if before:
            below = self._earlier(below)
        elif above == below and output != tensor:
            below = f"{below}#{tensor}"
        return f"∂{_bracketed(above)}/∂{_bracketed(below)}"

    def _told_from_roots(self, tensor: int) -> str:
        """The name of a tensor, with its number if a root of the next pass has the same name: in a loop `y = y * w` the
        result of the first round is not the y that is differentiated."""
        name, born = self.called(tensor), self.trace.born(tensor)
        firsts, _ = self.trace.pass_spans
        place = len(firsts) if born is None else int(firsts.searchsorted(born, side="right"))
        roots = self._roots_of_pass(int(firsts[place])) if place < len(firsts) else []
        return f"{name}#{tensor}" if tensor not in roots and name in map(self.called, roots) else name

    def _find_roots(self, first: int) -> list[int]:
        """The roots of the pass that begins at an event."""
        began = self.trace.event(first)
        return [root.tensor for root in began.roots] if isinstance(began, PassBegan) else []

    def derivative(self, tensor: int, moment: Moment, before: bool = False, node: int = 0) -> str:
        """A tensor's gradient as text: `∂z/∂y` if one scalar z is differentiated, otherwise `gradient of y`. `node`
        is the node that receives the gradient: a tensor that the program does not see is named by it."""
        if not tensor and node:
            return self.say("gradient of {name}", name=self.say("the output of {node}", node=self.node_name(node)))
        if root := self.root_of(moment):
            return self.partial(root, tensor, before=before)
        name = self.called(tensor) if tensor else "?"
        backward_pass = moment.pass_info
        roots = self.query.passes.began(backward_pass.number).roots if backward_pass is not None else ()
        if any(root.tensor not in (0, tensor) and self.called(root.tensor) == name for root in roots):
            name = f"{name}#{tensor}"
        return self.say("gradient of {name}", name=self._earlier(name) if before else name)

    def root_of(self, moment: Moment) -> int:
        """The one scalar that is differentiated at a moment; 0 if there is none."""
        backward_pass = moment.pass_info
        return self._root_of_one(backward_pass.number) if backward_pass is not None else 0

    def _find_root(self, number: int) -> int:
        """The root of a pass, if it is one scalar that is differentiated; otherwise 0."""
        roots = self.query.passes.began(number).roots
        if len(roots) != 1:
            return 0
        seed = self.trace.snapshot(roots[0].gradient)
        plain = seed is not None and seed.array is not None and seed.array.size == 1
        return roots[0].tensor if plain and seed.array.reshape(-1)[0] == 1 else 0  # type: ignore[union-attr]


@lru_cache(maxsize=1024)
def _bracketed(name: str) -> str:
    """A name as it follows ∂: in brackets unless it is a plain name or a path."""
    return name if all(character.isalnum() or character in "_.#[]'\"" for character in name) else f"({name})"
