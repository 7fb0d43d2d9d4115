"""Every function of the engine beside PyTorch's, at values where they may part: ties, bounds, 0, −0, inf, NaN.

The functions are all public names of the engine's modules and all methods of its Tensor. Their arguments come from
PyTorch's database of samples; a function that is not in it is called with one, two or three tensors. `Case` puts other
elements, shapes, dtypes and memory into such a call, and `differences` compares what both do: exception, values,
dtypes, shapes, flags, nodes, calls of hooks, gradients.

differences.json lists the differences that are meant, each with its reason; docs/engine.md prints them.

    python -m tests.conformance.differential                 # the differences in the grid that are not listed
    python -m tests.conformance.differential log clamp_      # those of these functions
    python -m tests.conformance.differential shard 0 4       # those of every fourth function
    python -m tests.conformance.differential dtypes          # at other dtypes, as "shapes" at other shapes: not listed
    python -m tests.conformance.differential write           # prints the table into docs/engine.md
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from gradviz import engine
from tests.conformance.opinfo import RANDOM, UNDEFINED, Sample, array_of, flat, map_tensors, ours, tensors_in
from tests.torch_samples import operators, take_no_stacks

HERE = Path(__file__).parent
LISTED = HERE / "differences.json"
PAGE = HERE.parent.parent / "docs" / "engine.md"
BEGIN = "<!-- made by python -m tests.conformance.differential write -->"
END = "<!-- end -->"

FLOATS = ("float64", "float32", "float16")
DTYPES = (*FLOATS, "complex64", "complex128", "int64", "int32", "int16", "int8", "uint8", "bool")
SHAPES = ((), (0,), (1,), (3,), (2, 3), (0, 3), (2, 0), (1, 3), (2, 1, 2))
POOL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, np.inf, -np.inf, np.nan)
SPECIAL = ((0.0,), (-0.0,), (1.0,), (-1.0,), (0.5, 2.0), (np.inf,), (-np.inf, 1.0), (np.nan, 1.0), POOL)
COTANGENTS = ("random", "ones", "zeros")
SAMPLES_OF_A_FUNCTION = 2
MOST_ELEMENTS = 500
TOLERANCES = {"float16": (2e-2, 2e-3), "float32": (2e-4, 2e-5), "complex64": (2e-4, 2e-5)}

# Names that are no functions of tensors, or that have nothing to compare, each with the reason.
NOT_COMPARED = {
    "says_what_is_missing with_pytorchs_names": "helpers of the modules",
    "save load set_printoptions set_rng_state get_rng_state seed initial_seed manual_seed": "files, printing, draws",
    "set_default_dtype get_default_dtype is_grad_enabled promote_types can_cast result_type": "no tensors",
    "vmap": "takes a function: tests/test_vmap.py",
    "normal_cdf log_sigmoid special_expit special_expit_": "names inside the engine; PyTorch has no such function",
    "backward register_hook register_post_accumulate_grad_hook retain_grad requires_grad_": "run in every case",
    "astype numpy tolist data_ptr": "memory and Python objects, not tensors",
    "from_numpy as_tensor tensor new_tensor rand randperm": "make tensors: tests/test_torch_creation.py",
    "randint rand_like randn randn_like randint_like": "make tensors: tests/test_torch_creation.py",
}


# --- the functions


@functools.cache
def functions() -> dict[str, Any]:
    """The engine's public functions by their path: `exp`, `nn.functional.relu`, `Tensor.add_`."""
    found: dict[str, Any] = {}
    for path, module in (
        ("", engine), ("nn.functional.", engine.nn.functional), ("linalg.", engine.linalg), ("special.", engine.special)
    ):  # fmt: skip
        for name, value in vars(module).items():
            if not name.startswith("_") and callable(value) and not isinstance(value, (type, types.ModuleType)):
                found[path + name] = value
    known = {id(value) for value in found.values()}
    for name in dir(engine.Tensor):
        method = getattr(engine.Tensor, name, None)
        if not name.startswith("_") and callable(method) and id(method) not in known:
            found[f"Tensor.{name}"] = method
    return found


def in_pytorch(path: str) -> Any:
    """PyTorch's function of that path; None where it has none."""
    call: Any = torch
    for part in path.split("."):
        call = getattr(call, part, None)
    return call


@functools.cache
def to_compare() -> list[str]:
    """The functions to compare: those that PyTorch has too, without those of NOT_COMPARED. Of several names of one
    function one is taken."""
    left_out = uncompared()
    chosen: dict[int, str] = {}
    for name in functions():
        if name.split(".")[-1] not in left_out and in_pytorch(name) is not None:
            chosen.setdefault(id(functions()[name]), name)
    return list(chosen.values())


def uncompared() -> set[str]:
    """The names of NOT_COMPARED."""
    return {name for names in NOT_COMPARED for name in names.split()}


@functools.cache
def database() -> dict[str, list[tuple[Any, Any]]]:
    """For each name of an operation: the entries of PyTorch's database, each with PyTorch's function."""
    take_no_stacks()
    found: dict[str, list[tuple[Any, Any]]] = {}
    for entry in operators():
        found.setdefault(entry.name, []).append((entry, entry.op))
        for alias in entry.aliases:
            found.setdefault(alias.name, []).append((entry, alias.op))
        if entry.inplace_variant is not None:
            found.setdefault(f"{entry.name}_", []).append((entry, entry.inplace_variant))
            for alias in entry.aliases:
                if alias.inplace_variant is not None:
                    found.setdefault(f"{alias.name}_", []).append((entry, alias.inplace_variant))
    return found


@functools.cache
def samples(name: str) -> list[Sample]:
    """Some samples of a function, of different kinds of arguments."""
    plain = name.removeprefix("Tensor.")
    rows = [row for known in (name, plain, f"nn.functional.{plain}") for row in database().get(known, [])]
    rows = [(entry, call) for entry, call in rows if entry.dtypes & {torch.float64, torch.int64, torch.bool}][:3]
    found = [
        sample for entry, call in rows for sample in of_entry(entry, call, name, -(-SAMPLES_OF_A_FUNCTION // len(rows)))
    ]
    return found or list(plain_calls(name))


def of_entry(entry: Any, call: Any, name: str, most: int) -> Iterator[Sample]:
    dtype = next(d for d in (torch.float64, torch.float32, torch.int64, torch.bool) if d in entry.dtypes)
    differentiable = entry.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    np.random.seed(0)
    kinds = set()
    for raw in itertools.islice(entry.sample_inputs("cpu", dtype, requires_grad=differentiable), 200):
        kind = kind_of((raw.input, raw.args, raw.kwargs))
        if kind in kinds or sum(t.numel() for t in tensors_in((raw.input, raw.args, raw.kwargs))) > MOST_ELEMENTS:
            continue
        kinds.add(kind)
        function = functions()[name]
        if name == entry.name or name not in functions():
            function = ours(entry.name)
        made = Sample(SimpleNamespace(op=call, inplace_variant=call, name=entry.name), raw, function)
        made.extra = entry.op.keywords if isinstance(entry.op, functools.partial) else {}
        yield made
        if len(kinds) >= most:
            return


def kind_of(value: Any) -> Any:
    """What two samples differ in: dimensions of tensors, types and flags of other arguments."""
    if isinstance(value, torch.Tensor):
        return f"{value.ndim}, {value.dtype}"
    if isinstance(value, dict):
        return tuple((key, kind_of(part)) for key, part in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(kind_of, value[:3]))
    return repr(value) if isinstance(value, (bool, str, type(None))) else type(value).__name__


def plain_calls(name: str) -> Iterator[Sample]:
    """Calls of a function that the database has not: with tensors and small numbers, as far as PyTorch takes them."""
    call = in_pytorch(name)
    x = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    square = torch.rand(2, 2, dtype=torch.float64, requires_grad=True)
    images = torch.rand(1, 4, 4, 4, dtype=torch.float64, requires_grad=True)
    for args in (
        (x,), (x, x.detach()), (x, 1), (x, 0.5, 1.0), (square,), (square, 2), (x, x.detach(), x.detach()), (images,),
        (images, 2), (images[0].detach().requires_grad_(), 2), (x, 0, 1), (x, torch.float32),
        (x, x, torch.rand(2, 3, 3)),
        (images, 2.0, 2), (torch.rand(1, 4, 4, requires_grad=True), 4, 2, 1, 1), (images, 4), (x.detach(),),
        (x, torch.rand(3, dtype=torch.float64)), (torch.rand(2, 3, dtype=torch.complex128, requires_grad=True),),
        (torch.rand(1, requires_grad=True),), (torch.rand(1, 4, 9, requires_grad=True), (3, 3), 1),
        (torch.rand(1, 16, 4, requires_grad=True), (3, 3), 2), ((2, 1), (3,)),
    ):  # fmt: skip
        raw = SimpleNamespace(input=args[0], args=args[1:], kwargs={})
        made = Sample(SimpleNamespace(op=call, inplace_variant=call, name=name), raw, functions()[name])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made.in_torch([t.detach().clone() for t in made.leaves])
        except Exception:
            continue
        yield made


# --- cases


@dataclass(frozen=True)
class Case:
    """One call: a sample of a function, with these elements, dtype, shape of the first tensor, memory and cotangent."""

    function: str
    sample: int
    elements: tuple[float, ...] = ()  # repeated as often as a tensor needs them; () leaves the sample's own
    dtype: str = ""  # of the floating-point tensors; "" leaves the sample's own
    shape: tuple[int, ...] | None = None
    strided: bool = False
    cotangent: str = "random"
    many: bool = False  # the shape is that of all floating-point tensors

    def both(self) -> tuple[Any, Any]:
        """The same call for PyTorch and for the engine, with the leaves of each: (function, leaves) twice."""
        sample = samples(self.function)[self.sample]
        raw = sample.raw
        count = itertools.count()
        made: dict[int, torch.Tensor] = {}

        def other(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in made:
                made[id(tensor)] = self.changed(tensor, next(count))
            return made[id(tensor)]

        input, args, kwargs = map_tensors((raw.input, raw.args, raw.kwargs), other)
        changed = Sample(sample.entry, SimpleNamespace(input=input, args=args, kwargs=kwargs), sample.function)
        changed.extra = sample.extra
        changed.in_place = self.function.endswith("_") and self.function not in ("zero_",)
        return changed

    def changed(self, tensor: torch.Tensor, nth: int) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        shape = tuple(tensor.shape) if self.shape is None or (nth and not self.many) else self.shape
        dtype = self.dtype or str(tensor.dtype).split(".")[1]
        n = int(np.prod(shape))
        if self.elements:
            first = nth * 3  # so that two tensors do not have the same elements, but the same ones at some places
            picked = [self.elements[(first * (i % 2) + i) % len(self.elements)] for i in range(n)]
            array = np.array(picked, float).reshape(shape)
        else:
            own = tensor.detach().numpy().ravel()
            array = np.resize(own if own.size else np.array([0.5, -2.0, 1.0]), shape)
        with np.errstate(all="ignore"):
            if dtype[0] not in "fc":  # casts of inf and NaN to integers are nobody's to compare
                array = np.nan_to_num(array, nan=0, posinf=5, neginf=4)
            array = np.asarray(array).astype(dtype)
        if self.strided and array.ndim and tensor.requires_grad and self.function != "as_strided":
            wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), dtype)
            wide[..., ::2] = array
            array = wide[..., ::2]
        made = torch.from_numpy(array)
        return made.requires_grad_() if tensor.requires_grad and dtype[0] in "fc" else made


def grid(name: str, parts: str = "elements") -> Iterator[Case]:
    """The cases of a function. Those of "elements" are in float64; the differences in the others are not yet listed."""
    for nth in range(len(samples(name))):
        if "elements" in parts:
            yield Case(name, nth)
            yield Case(name, nth, (), strided=True)
            for elements in SPECIAL:
                yield Case(name, nth, elements)
            yield Case(name, nth, POOL, cotangent="zeros")
            for value in sorted(numbers_in(samples(name)[nth].raw)):
                yield Case(name, nth, (value, 0.25))
        if "dtypes" in parts:
            for dtype in DTYPES[1:]:
                yield Case(name, nth, (0.0, 1.0, 2.0), dtype)
            yield Case(name, nth, POOL, "float32")
        if "shapes" in parts:
            for i, shape in enumerate(SHAPES):
                yield Case(name, nth, (), shape=shape, many=bool(i % 2))


def numbers_in(raw: Any) -> set[float]:
    """The numbers among the arguments: bounds, margins, thresholds."""
    found = set()
    for value in (*raw.args, *raw.kwargs.values()):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found.add(float(value))
    return found


# --- comparing


@dataclass(frozen=True)
class Difference:
    """How the engine differs from PyTorch in a case: in what, and ours for theirs."""

    function: str
    what: str  # error, value, dtype, shape, flags, nodes, hooks, gradient
    how: str  # "nan for finite", "RuntimeError for IndexError"
    dtype: str  # of the case: "float", "complex", "int", "bool"


def says_so(error: BaseException) -> bool:
    """Whether an exception says that the engine does not have this."""
    return isinstance(error, NotImplementedError) or "gradviz" in str(error)


@dataclass
class Done:
    """What a call did."""

    error: BaseException | None = None
    outs: Any = ()
    leaves: Any = ()
    calls: Any = ()
    backward: BaseException | None = None


def run(library: Any, sample: Sample, case: Case) -> Done:
    """Run one call and its backward."""
    is_torch = library is torch
    leaves = [leaf.detach().requires_grad_() if is_torch else own(leaf) for leaf in sample.leaves]
    done = Done(leaves=leaves)
    try:
        out = sample.in_torch(leaves) if is_torch else sample.in_gradviz(leaves)
        done.outs = [tuple(out)] if isinstance(out, (torch.Size, engine.Size)) else flat(out)
    except Exception as error:
        done.error = error
        return done
    tensor = library.Tensor
    roots = [out for out in done.outs if isinstance(out, tensor) and out.requires_grad]
    if not roots:
        return done
    done.calls = watched(roots)
    try:
        weights = [weight(library, root, case) for root in roots]
        library.autograd.backward(roots, weights)
    except Exception as error:
        done.backward = error
    return done


def own(tensor: torch.Tensor) -> Any:
    """The engine's tensor of the same elements in memory of its own, laid out alike."""
    array = tensor.detach().numpy()
    if array.ndim and array.size and not array.flags.forc:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        made = engine.from_numpy(wide[..., ::2])
    else:
        made = engine.from_numpy(array.copy(order="K"))
    return made.requires_grad_(tensor.requires_grad)


def weight(library: Any, root: Any, case: Case) -> Any:
    shape, dtype = tuple(root.shape), str(root.dtype).split(".")[1]
    values = {"ones": np.ones, "zeros": np.zeros}.get(case.cotangent)
    array = values(shape) if values else np.random.RandomState(1).randn(*shape)
    return library.from_numpy(np.asarray(array).astype(dtype))


def nodes_of(roots: list) -> list[Any]:
    """The nodes that lead to the roots, nearest first."""
    seen: list[Any] = []
    todo = [root.grad_fn for root in roots]
    while todo:
        node = todo.pop(0)
        if node is not None and not any(node is other for other in seen):
            seen.append(node)
            todo += [onward for onward, _ in node.next_functions]
    return seen


def watched(roots: list) -> list[Any]:
    """Hook every node of the graph. Returns the list that the calls of hooks will be in."""
    calls: list[Any] = []
    for i, node in enumerate(nodes_of(roots)):
        node.register_prehook(lambda upstream, i=i: calls.append((i, "pre", [g is None for g in upstream])))
        node.register_hook(lambda after, _, i=i: calls.append((i, "post", [g is None for g in after])))
    return calls


def graph(roots: list) -> list[Any]:
    """The names of all nodes, and where the edges of each lead to."""
    nodes = nodes_of(roots)
    number = {id(node): i for i, node in enumerate(nodes)}
    return [
        (node.name(), [(None if to is None else number[id(to)], nr) for to, nr in node.next_functions])
        for node in nodes
    ]


def differences(case: Case) -> list[Difference]:
    """All that the engine does otherwise than PyTorch in a case. [] also where the engine says that it has not this."""
    kind = {"f": "float", "c": "complex", "i": "int", "u": "int", "b": "bool"}[(case.dtype or "float64")[0]]
    made = lambda what, how: Difference(case.function, what, how, kind)
    sample = case.both()
    theirs = run(torch, sample, case)
    mine = run(engine, sample, case)
    if mine.error is not None and says_so(mine.error) and not (theirs.error and type(theirs.error) is type(mine.error)):
        return []
    if theirs.error is not None or mine.error is not None:
        pair = tuple("nothing" if e is None else type(e).__name__.lstrip("_") for e in (mine.error, theirs.error))
        return [] if pair[0] == pair[1] else [made("error", "{} for {}".format(*pair))]
    if len(theirs.outs) != len(mine.outs):
        return [made("value", f"{len(mine.outs)} outputs for {len(theirs.outs)}")]
    found: list[Difference] = []
    random = sample.entry.name in RANDOM | UNDEFINED
    for a, b in zip(theirs.outs, mine.outs, strict=True):
        found += [made(what, how) for what, how in compared("value", a, b, case, random)]
        if isinstance(a, torch.Tensor) and isinstance(b, engine.Tensor):
            flags = [(t.requires_grad, t.is_leaf) for t in (a, b)]
            if flags[0] != flags[1]:
                found.append(made("flags", f"{flags[1]} for {flags[0]}"))
    pairs = [(a, b) for a, b in zip(theirs.outs, mine.outs, strict=True) if isinstance(a, torch.Tensor)]
    if any(d.what in ("flags", "shape", "dtype") for d in found) or not all(
        isinstance(b, engine.Tensor) for _, b in pairs
    ):
        return found
    roots = [a for a, _ in pairs if a.requires_grad], [b for _, b in pairs if b.requires_grad]
    if not roots[0]:
        return found
    graphs = graph(roots[0]), graph(roots[1])
    if graphs[0] != graphs[1]:
        x, y = next(((x, y) for x, y in zip(*graphs, strict=False) if x != y), (("", 0), ("", 1)))
        how = f"{y[0]} for {x[0]}" if x[0] != y[0] else f"edges of {x[0]}"
        found.append(made("nodes", how.replace("torch::autograd::", "")))
    if theirs.backward is not None or mine.backward is not None:
        pair = tuple("nothing" if e is None else type(e).__name__.lstrip("_") for e in (mine.backward, theirs.backward))
        if pair[0] == pair[1] or (mine.backward is not None and says_so(mine.backward)):
            return found
        return [*found, made("backward error", "{} for {}".format(*pair))]
    if graphs[0] == graphs[1] and theirs.calls != mine.calls:
        found.append(made("hooks", "other calls"))
    for a, b in zip(theirs.leaves, mine.leaves, strict=True):
        found += [
            made(what.replace("value", "gradient"), how)
            for what, how in compared("gradient", a.grad, b.grad, case, random)
        ]
    return list(dict.fromkeys(found))


def compared(what: str, a: Any, b: Any, case: Case, random: bool) -> Iterator[tuple[str, str]]:
    """Where a value of the engine, b, is not PyTorch's a."""
    if isinstance(a, torch.Tensor) != isinstance(b, engine.Tensor):
        yield what, f"{kind(b)} for {kind(a)}"
        return
    if not isinstance(a, torch.Tensor):
        if repr(a) != repr(b) and not (isinstance(a, float) and np.isclose(a, b, equal_nan=True)):
            yield what, "another one"
        return
    if tuple(a.shape) != tuple(b.shape):
        yield "shape", f"of the {what}"
        return
    if str(a.dtype) != str(b.dtype):
        yield "dtype", f"{b.dtype} for {a.dtype}".replace("torch.", "") + f" of the {what}"
        return
    x = array_of(a)
    y = b.array
    if random:
        return
    rtol, atol = TOLERANCES.get(str(a.dtype).split(".")[1], (1e-6, 1e-8))
    with np.errstate(all="ignore"):
        wrong = ~np.isclose(y, x, rtol, atol, equal_nan=True) if x.dtype.kind in "fc" else x != y
    if wrong.any():
        i = tuple(np.argwhere(wrong)[0])
        yield what, f"{sort_of(y[i])} for {sort_of(x[i])}"
    elif x.dtype.kind == "f" and ((x == 0) & (np.signbit(x) != np.signbit(y))).any():
        yield what, "sign of a zero"


def kind(value: Any) -> str:
    return "none" if value is None else type(value).__name__


def sort_of(number: Any) -> str:
    """What kind of number an element is: the words of `how`."""
    if np.isnan(number):
        return "nan"
    if np.isinf(number):
        return "inf" if not isinstance(number, np.complexfloating) and number > 0 else "−inf"
    return "0" if number == 0 else "number"


# --- all of them


@dataclass
class Found:
    """The differences of some cases: how often each was seen, and the first case of each."""

    cases: int
    seen: Counter[Difference]
    first: dict[Difference, Case]

    def unlisted(self) -> dict[Difference, Case]:
        """The differences that differences.json does not list, each with a case."""
        return {difference: case for difference, case in self.first.items() if row_of(difference) is None}


def compare(names: list[str], parts: str = "elements") -> Found:
    """The differences in the grid of these functions."""
    found = Found(0, Counter(), {})
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name in names:
            for case in grid(name, parts):
                found.cases += 1
                for difference in differences(case):
                    found.seen[difference] += 1
                    found.first.setdefault(difference, case)
    return found


@functools.cache
def listed() -> list[dict[str, Any]]:
    """The rows of differences.json: `functions`, `what`, `how` and `why`; `dtypes` where it is not "float"; `drawn`
    where only drawn elements show it, none of the grid; `processor` where some processors show it."""
    return json.loads(LISTED.read_text(encoding="utf-8"))


def row_of(difference: Difference, is_drawn: bool = False) -> int | None:
    """The number of the row that lists a difference, in the grid or of drawn elements."""
    for number, row in enumerate(listed()):
        if (
            ("drawn" not in row or is_drawn)
            and difference.what == row["what"]
            and difference.how in row["how"]
            and difference.dtype in row.get("dtypes", ["float"])
            and (difference.function in row["functions"].split() or row["functions"] == "*")
        ):
            return number
    return None


def table() -> str:
    """The listed differences as Markdown."""
    lines = ["| functions | what differs | gradviz's for PyTorch's | why |", "|-|-|-|-|"]
    for row in listed():
        named = ", ".join(f"`{name}`" for name in row["functions"].split())
        functions = "all functions" if row["functions"] == "*" else named
        what = row["what"] + (f" ({', '.join(row['dtypes'])})" if "dtypes" in row else "")
        lines.append(f"| {functions} | {what} | {'; '.join(row['how'])} | {row['why']} |")
    return "\n".join(lines)


def write_page() -> None:
    """Print the table between its marks in docs/engine.md."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    if names == ["write"]:
        return write_page()
    parts = "elements"
    if names and names[0] in ("elements", "dtypes", "shapes"):
        parts, *names = names
    if names and names[0] == "shard":
        names = to_compare()[int(names[1]) :: int(names[2])]
    names = names or to_compare()
    total = 0
    for name in names:
        found = compare([name], parts)
        total += found.cases
        for difference, case in found.unlisted().items():
            print(f"{found.seen[difference]} × {difference} {case}", flush=True)
    print(f"{total} cases of {len(names)} functions")
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
