"""The curves of a run: what the program reports at each step, the norms of the gradients and the updates of each
module, and histograms of values."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.values import COUNTS, LAST, Stat, counts_between
from gradviz.query.optimizer_steps import number_of, rates_of_groups, settings_of
from gradviz.query.query import Query
from gradviz.sets import contained, distinct
from gradviz.tracefile import Snapshot, Trace
from gradviz.tracefile.chosen import BEHIND_TROUBLE, BUDGET, first_of, is_regular
from gradviz.tracefile.states import States


class Norms(NamedTuple):
    """Euclidean norms of many leaves. `values[i]` is the norm of the gradient or the change of `leaves[i]` in the pass
    or step `at[i]`, and `sizes[i]` the norm of the leaf itself then. NaN where elements are not finite, −1 where the
    norm is not known."""

    leaves: np.ndarray
    at: np.ndarray
    values: np.ndarray
    sizes: np.ndarray


def accumulated_norms(query: Query) -> Norms:
    """The norms of the gradients that each leaf accumulated, by pass."""
    table, trace = query.trace.table(Kind.ACCUMULATED), query.trace
    gradients = trace.states.rows_of(table["gradient"], table.events)
    leaves = query.memory.rows_of(table["tensor"], table.events)
    return Norms(table["tensor"], table["in_pass"], norms_of(trace, gradients), norms_of(trace, leaves))


class StepWrites(NamedTuple):
    """The last write of each step of an optimizer to each parameter: the event, the tensor, and the row of the step
    among the STEPPED events."""

    events: np.ndarray
    tensors: np.ndarray
    steps: np.ndarray


def step_writes(query: Query) -> StepWrites:
    """The values that steps of optimizers left, in the order of the events. A step may write several times."""
    stepped, mutated = query.trace.table(Kind.STEPPED), query.trace.table(Kind.MUTATED)
    if not len(stepped) or not len(mutated):
        return StepWrites(*np.zeros((3, 0), np.int64))
    step = np.searchsorted(stepped.events, mutated.events) - 1
    by_optimizer = np.flatnonzero((step >= 0) & (stepped["type"][step] == mutated["how"]))
    keys = step[by_optimizer].astype(np.int64) << 32 | mutated["tensor"][by_optimizer]
    _, behind = np.unique(keys[::-1], return_index=True)
    last = by_optimizer[np.sort(len(keys) - 1 - behind)]
    return StepWrites(mutated.events[last], mutated["tensor"][last], step[last])


def change_norms(query: Query) -> Norms:
    """The norms of the changes that each step of an optimizer makes to each parameter, by the number of the step, in
    the order of `step_writes`.

    Where elements were kept, it is the norm of their difference, else the norm that was kept with the statistics. Where
    neither was, for SGD without momentum and weight decay it is the rate times the norm of the gradient. Other changes
    are not known."""
    trace = query.trace
    stepped, written = trace.table(Kind.STEPPED), query.of(step_writes)
    step, tensors, events = written.steps, written.tensors, written.events
    before = query.memory.rows_of(tensors, stepped.events[step])
    after = trace.states.rows_of(tensors, events)
    sizes = norms_of(trace, before)
    changes = trace.states.distances(before, after)
    changes = np.where(changes == -1, trace.states.changes(after), changes)
    plain = np.flatnonzero(changes == -1)
    changes[plain] = _plain_changes(query, tensors[plain], step[plain])
    return Norms(tensors, step + 1, np.where(sizes == -1, -1, changes), sizes)


@np.errstate(all="ignore")  # a parameter may be 0, or have infinities
def ratios(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Norms relative to sizes: −1 where either is not known, or the size is 0."""
    return np.where((values == -1) | (sizes == -1) | (sizes == 0), -1, values / sizes)


def norms_of(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """The norms of tensors by their rows of the states: NaN where elements are not finite, −1 where the norm is not
    known."""
    states: States = trace.states
    is_known = ~np.isnan(states.rms(rows)) | states.are_bad(rows)
    return np.where(is_known, states.finite_rms(rows) * np.sqrt(states.sizes(rows)), -1.0)


def _plain_changes(query: Query, tensors: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The norms of the changes that plain SGD makes, the rate times the norm of the gradient; −1 for other steps."""
    stepped = query.trace.table(Kind.STEPPED)
    rates = _plain_rates(query)[steps]
    events = stepped.events[steps]
    gradients = query.tensors.grads.last_of(tensors, events)
    norms = norms_of(query.trace, query.memory.rows_of(gradients, events))
    return np.where(np.isnan(rates) | (norms == -1), -1, rates * norms)


def _plain_rates(query: Query) -> np.ndarray:
    """The rate of each step of SGD that has one group, without momentum and weight decay; NaN for any other."""
    stepped = query.trace.table(Kind.STEPPED)
    groups = stepped.lists("groups")
    rate_of = {}
    for text in distinct(groups.elements[:, 0]).tolist():
        settings = settings_of(query.trace.text(text))
        is_plain = not settings.get("momentum") and not settings.get("weight_decay")
        rate_of[text] = number_of(settings.get("lr")) if is_plain else np.nan
    sgd = query.trace.named(stepped["type"], ("SGD",))
    rates = np.array([rate_of.get(text, np.nan) for text in groups.firsts.tolist()])
    return np.where(sgd & (groups.counts == 1), rates, np.nan)


_MOST = 64  # the most passes that are all measured
_SAMPLE = 16  # the number of passes that are measured if there are more, spread over the run
_LEAST = 3  # the fewest passes that make a trend


@dataclass(frozen=True, slots=True, eq=False)
class Trend:
    """The events that accumulated into a leaf, and the Euclidean norm of each gradient (NaN if it is not finite). If
    the run has many passes, only a sample of them is measured; `of` is the number of all passes then, else 0."""

    events: list[int]
    norms: list[float]
    of: int


def trend(query: Query, leaf: int) -> Trend | None:
    """The trend of a leaf's gradient over the whole run; None if it has fewer than three passes, or values
    are missing."""
    trace = query.trace
    numbers = trace.pass_numbers
    places = np.linspace(0, len(numbers) - 1, _SAMPLE).astype(int).tolist()
    sample = numbers if len(numbers) <= _MOST else [numbers[place] for place in places]
    for number in sample:
        trace.find_pass(number)
    table = trace.table(Kind.ACCUMULATED)
    sampled = (table["tensor"] == leaf) & contained(table["in_pass"], sample)
    events = table.events[sampled].tolist()
    if len(events) < _LEAST:
        return None
    norms = []
    for event in events:
        gradient = trace.table(Kind.ACCUMULATED).object(event).gradient
        norm = norm_of(query.memory.value(gradient, event - 1))
        if norm is None:
            return None
        norms.append(norm)
    return Trend(events, norms, len(numbers) if len(sample) < len(numbers) else 0)


def norm_of(snapshot: Snapshot | None) -> float | None:
    """The Euclidean norm of a tensor: √n times its root mean square. NaN if it is not finite, None if no
    value was kept."""
    if snapshot is None or snapshot.stats is None:
        return None
    stats = snapshot.stats
    if stats.nan or stats.inf:
        return math.nan
    return float(stats.rms) * math.sqrt(math.prod(snapshot.shape))


FIRST_PASSES, SAMPLE, ERROR, TROUBLE = "first", "sample", "error", "trouble"


class PassSummaries(NamedTuple):
    """The numbers of the passes `passes`, which ascend: the losses, and the norms of all gradients together that
    optimizers stepped with. NaN where they are not finite; `has_loss` and `has_norm` are whether they are known."""

    passes: np.ndarray
    losses: np.ndarray
    has_loss: np.ndarray
    norms: np.ndarray
    has_norm: np.ndarray


def pass_summaries(query: Query) -> PassSummaries:
    """The numbers of all passes. Several steps with the gradients of one pass, as of two optimizers, count together.
    Use `query.of(pass_summaries)`."""
    summed = query.trace.table(Kind.SUMMED)
    passes, at = np.unique(summed["in_pass"], return_inverse=True)
    count = len(passes)
    known_loss, known_norm = summed["has_loss"] > 0, summed["norm"] != -1
    losses, squares = np.zeros(count), np.zeros(count)
    losses[at[known_loss]] = _finite(summed["loss"][known_loss])
    np.add.at(squares, at[known_norm], _finite(summed["norm"][known_norm]) ** 2)
    has_loss, has_norm = (np.bincount(at, known, count) > 0 for known in (known_loss, known_norm))
    return PassSummaries(passes, losses, has_loss, np.sqrt(squares), has_norm)


class StepSummaries(NamedTuple):
    """Norms of the changes that steps of optimizers, by their numbers, made to all their parameters together, and of
    these before (`sizes`); `passes` are those whose gradients they used, and ascend. NaN where they are not finite."""

    passes: np.ndarray
    optimizers: np.ndarray
    changes: np.ndarray
    sizes: np.ndarray


def step_summaries(query: Query) -> StepSummaries:
    """The changes of all steps of which such numbers were kept. Use `query.of(step_summaries)`."""
    summed = query.trace.table(Kind.STEP_SUMMED)
    rows = np.flatnonzero(summed["change"] != -1)
    rows = rows[np.argsort(summed["in_pass"][rows], kind="stable")]
    changes, sizes = _finite(summed["change"][rows]), _finite(summed["size"][rows])
    return StepSummaries(summed["in_pass"][rows], summed["optimizer"][rows], changes, sizes)


def relative_changes(query: Query) -> dict[int, float]:
    """The norm of the change that the steps behind a pass made together, relative to the norm of their parameters
    before, by pass; of a parameter the first step counts. A pass is left out where these were all 0."""
    summed = query.of(step_summaries)
    passes, at = np.unique(summed.passes, return_inverse=True)
    changes, sizes = (np.sqrt(np.bincount(at, part**2)) for part in (summed.changes, summed.sizes))
    relative = ratios(changes, sizes)
    return {number: value for number, value in zip(passes.tolist(), relative.tolist(), strict=True) if value != -1}


def _finite(values: np.ndarray) -> np.ndarray:
    """Values, with NaN for an infinity."""
    return np.where(np.isfinite(values), values, np.nan)


def reasons(query: Query) -> dict[int, str]:
    """Why each pass that was recorded in detail was: it is one of the first, or a sample of all; or it began from a
    loss that is NaN or has jumped, or came behind a NaN (`nan`), a jump of the loss or the norm (`jump`) or an
    exception (`error`) that was noticed, or behind trouble in what was recorded (`trouble`). Empty for a run that was
    not recorded with a budget or `--passes auto`."""
    trace = query.trace
    chosen = trace.meta.get("passes", "")
    first, digits = first_of(chosen), 2 if chosen.endswith(BUDGET) else 1
    if first is None:
        return {}
    summed = trace.table(Kind.SUMMED)
    recorded = [one.number for one in trace.passes if one.recorded]
    causes = {
        number: trace.text(why)
        for number, why in zip(summed["in_pass"].tolist(), summed["why"].tolist(), strict=True)
        if trace.text(why)
    }
    errors = trace.table(Kind.ERROR)
    causes |= dict.fromkeys(errors["in_pass"][errors["in_pass"] > 0].tolist(), ERROR)
    return {number: _reason(number, first, digits, causes) for number in recorded}


def _reason(number: int, first: int, digits: int, causes: dict[int, str]) -> str:
    is_sample = is_regular(number, digits)
    nearest = 1 if is_sample else 0  # a pass may be recorded for its own loss
    before = (causes.get(number - distance) for distance in range(nearest, BEHIND_TROUBLE + 1))
    if number <= first:
        return FIRST_PASSES
    return next(filter(None, before), SAMPLE if is_sample else TROUBLE)


class NamedCurve(NamedTuple):
    """Values over the passes or steps `at`. NaN where a value is not finite."""

    name: str
    at: np.ndarray
    values: np.ndarray


def by_place(curves: Iterable[NamedCurve]) -> dict[int, dict[str, float]]:
    """The values of curves by pass or step, and by name."""
    values: dict[int, dict[str, float]] = {}
    for curve in curves:
        for place, value in zip(curve.at.tolist(), curve.values.tolist(), strict=True):
            values.setdefault(place, {})[curve.name] = value
    return values


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
Grouping = Callable[[int], str]  # from a leaf to the name of the module that it is counted in


def losses(query: Query) -> list[NamedCurve]:
    """The value of the scalar that each pass began at, by pass: a curve for each line where passes began. Of passes
    that were left out it is known where a few numbers of each pass were kept. If there is a `backward()`, the roots of
    `autograd.grad` do not count as losses."""
    trace = query.trace
    began = trace.table(Kind.PASS_BEGAN)
    roots = began.lists("roots")
    summed = query.of(pass_summaries)
    if not len(began) or not (len(roots.elements) or summed.has_loss.any()):
        return []
    first = np.where(roots.counts > 0, np.append(roots.elements, np.zeros((1, 4), np.int64), 0)[roots.starts, 2], 0)
    rows = trace.states.rows_of(first, began.events)
    scalars = [number for number, form in trace.forms.items() if np.prod(form.shape) == 1]
    is_scalar = (rows >= 0) & np.isin(trace.states.forms[rows], scalars)
    stats = trace.states.stats[rows]
    values = np.where(stats[:, Stat.NAN] + stats[:, Stat.INF] > 0, np.nan, stats[:, Stat.MEAN])
    known = is_scalar & ~np.isnan(stats[:, Stat.NAN])
    kept = np.flatnonzero(~known & contained(began["number"], summed.passes[summed.has_loss]))
    values[kept] = summed.losses[np.searchsorted(summed.passes, began["number"][kept])]
    known[kept] = True
    fills = trace.named(began["how"], ("backward",))
    known &= fills if fills.any() else True
    by_place: dict[tuple[str, int], list[int]] = {}
    for row in np.flatnonzero(known).tolist():
        site = trace.sites.get(int(began.sites[row]))
        place = (site.place.file, site.place.line) if site is not None else ("", 0)
        by_place.setdefault(place, []).append(row)
    curves = []
    for (_, line), own in by_place.items():
        root = int(first[own].max())
        name = f"{query.labels.of(root) if root else 'loss'}{f' (line {line})' if line else ''}"
        curves.append(NamedCurve(name, began["number"][own], values[own]))
    return curves


def learning_rates(query: Query) -> list[NamedCurve]:
    """The learning rate of each parameter group, by step. Groups of one optimizer whose rates are the same have one
    curve."""
    curves = []
    for optimizer, name in _names_of_optimizers(query).items():
        curves += _with_groups(name, _rates_of_groups(query, optimizer))
    return curves


def _names_of_optimizers(query: Query) -> dict[int, str]:
    """The class of each optimizer that stepped, with its number where several have it."""
    stepped = query.trace.table(Kind.STEPPED)
    classes = {
        optimizer: query.trace.text(number)
        for optimizer, number in zip(stepped["optimizer"].tolist(), stepped["type"].tolist(), strict=True)
    }
    several = {name for name, count in Counter(classes.values()).items() if count > 1}
    return {
        optimizer: f"{class_name} {optimizer}" if class_name in several else class_name
        for optimizer, class_name in classes.items()
    }


def _rates_of_groups(query: Query, optimizer: int) -> list[tuple[list[int], NamedCurve]]:
    """The curves of an optimizer's rates, each with its groups; a rate that is no number is left out."""
    stepped, rates = query.trace.table(Kind.STEPPED), query.of(rates_of_groups)
    groups = stepped.lists("groups")
    of_optimizer = (stepped["optimizer"][groups.owners] == optimizer) & ~np.isnan(rates)
    curves: list[tuple[list[int], NamedCurve]] = []
    for group in distinct(groups.positions[of_optimizer]).tolist():
        here = of_optimizer & (groups.positions == group)
        curve = NamedCurve("", groups.owners[here] + 1, rates[here])
        alike = (
            numbers
            for numbers, known in curves
            if np.array_equal(known.at, curve.at) and np.array_equal(known.values, curve.values)
        )
        numbers = next(alike, None)
        if numbers is None:
            curves.append(([group], curve))
        else:
            numbers.append(group)
    return curves


def _with_groups(name: str, curves: list[tuple[list[int], NamedCurve]]) -> list[NamedCurve]:
    """The curves of an optimizer by its name; with their groups if there are several."""
    if len(curves) == 1:
        return [curve._replace(name=name) for _, curve in curves]
    return [curve._replace(name=f"{name}, group {', '.join(map(str, numbers))}") for numbers, curve in curves]


def gradients_of_modules(query: Query, module_of: Grouping) -> list[NamedCurve]:
    """The norm of all gradients together that the parameters of a module accumulated in a pass."""
    norms = query.of(accumulated_norms)
    return _together(norms._replace(sizes=np.zeros_like(norms.values)), module_of, lambda values, sizes: values)


def gradients_of_parameters(query: Query) -> list[NamedCurve]:
    """The norm of all gradients together that parameters accumulated in a pass; of all leaves in a run without
    parameters."""
    parameters = query.trace.parameters.keys() - query.trace.buffers
    curves = gradients_of_modules(query, lambda leaf: "" if leaf in parameters or not parameters else "inputs")
    return [curve for curve in curves if not curve.name]


def gradients_relative(query: Query, module_of: Grouping) -> list[NamedCurve]:
    """The norm of the accumulated gradients of a module relative to the norm of the parameters that accumulated."""
    return _together(query.of(accumulated_norms), module_of, ratios)


def changes_of_modules(query: Query, module_of: Grouping) -> list[NamedCurve]:
    """The norm of the change that a step makes to the parameters of a module, relative to their norm before. Steps with
    an unknown change of a parameter are left out."""
    return _together(query.of(change_norms), module_of, ratios)


def norms_of_steps(query: Query) -> list[NamedCurve]:
    """The norm of all gradients together that optimizers stepped with, by pass: where a few numbers of each pass were
    kept."""
    summed = query.of(pass_summaries)
    known = summed.has_norm
    return [NamedCurve("all gradients", summed.passes[known], summed.norms[known])] if known.any() else []


def changes_of_steps(query: Query) -> list[NamedCurve]:
    """The norm of the change of all parameters together that a step makes, relative to their norm before, by the pass
    whose gradients it used: a curve for each optimizer, where a few numbers of steps were kept."""
    summed = query.of(step_summaries)
    names = _names_of_optimizers(query)
    relative = ratios(summed.changes, summed.sizes)
    curves = []
    for optimizer in distinct(summed.optimizers).tolist():
        own = (summed.optimizers == optimizer) & (relative != -1)
        if own.any():
            name = names.get(optimizer, f"optimizer {optimizer}")
            curves.append(NamedCurve(name, summed.passes[own], relative[own]))
    return curves


def _together(
    norms: Norms, module_of: Grouping, measure: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> list[NamedCurve]:
    """A measure of the norms of all leaves of a module at a pass together; left out where a norm is not known."""
    if not len(norms.leaves):
        return []
    leaves, inverse = np.unique(norms.leaves, return_inverse=True)
    names = [module_of(leaf) for leaf in leaves.tolist()]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    groups = np.array([numbers[name] for name in names])[inverse]
    last = int(norms.at.max()) + 1
    keys, places = np.unique(groups * last + norms.at, return_inverse=True)
    unknown = np.bincount(places, (norms.values == -1) | (norms.sizes == -1)) > 0
    totals = [np.sqrt(np.bincount(places, part**2)) for part in (norms.values, norms.sizes)]
    values = measure(*totals)
    unknown |= values == -1
    curves = []
    for name, number in numbers.items():
        of_module = (keys // last == number) & ~unknown
        if of_module.any():
            curves.append(NamedCurve(name, keys[of_module] % last, values[of_module]))
    return curves


def modules_of(query: Query, most: int) -> Grouping:
    """Puts each leaf into one of at most `most` modules, which together have all parameters, each as deep in the
    network as that allows. A leaf that is no parameter stands for itself."""
    names = {leaf: name for leaf, name in query.trace.parameters.items() if leaf not in query.trace.buffers}
    module_by_name = with_own(partition(names.values(), most))
    by_leaf = {leaf: module_by_name[name] for leaf, name in names.items()}
    return lambda leaf: by_leaf.get(leaf) or query.labels.of(leaf)


def layers_of(query: Query, most: int) -> Grouping:
    """Puts each parameter into the module that holds it, if there are at most `most` of these, else as `modules_of`."""
    names = {leaf: name for leaf, name in query.trace.parameters.items() if leaf not in query.trace.buffers}
    holders = with_own({name: _parent(name) for name in names.values()})
    if len({*holders.values()}) > most:
        return modules_of(query, most)
    return lambda leaf: holders[names[leaf]] if leaf in names else query.labels.of(leaf)


def with_own(module_by_name: Mapping[str, str]) -> dict[str, str]:
    """The modules of parameters by their names. Where modules inside a module are counted apart, what the module holds
    itself is not all of `net`: one parameter has its own name, several are called `net (own)`."""
    held = Counter(module_by_name.values())
    around = {path[: dot.start()] for path in held for dot in re.finditer(r"\.", path)}
    return {
        name: path if path not in around else name if held[path] == 1 else f"{path} (own)"
        for name, path in module_by_name.items()
    }


def innermost_module(query: Query) -> Grouping:
    """Puts each parameter into the module that holds it, and a leaf that is no parameter into a group of its own."""
    names: Mapping[int, str] = query.trace.parameters
    return lambda leaf: _parent(names[leaf]) if leaf in names else query.labels.of(leaf)


def partition(names: Iterable[str], most: int) -> dict[str, str]:
    """The module in which each parameter is counted: its path, by the name of the parameter. There are at most `most`
    modules, unless there are more outermost modules."""
    module = {name: name.split(".", 1)[0] for name in names}
    final: set[str] = set()
    while open_ := Counter(alike(path) for path in module.values() if alike(path) not in final):
        largest = max(open_, key=lambda path: open_[path])
        split = {name: _deeper(name, path) for name, path in module.items() if alike(path) == largest}
        stays = {path for path in module.values() if alike(path) == largest} & {*split.values()}
        if len({*(module | split).values()}) <= most:
            module |= split
        if stays or len({*(module | split).values()}) > most:
            final.add(largest)
    return module


def alike(path: str) -> str:
    """The path of a module without the numbers in it: equal for the layers of a network."""
    return _NUMBER.sub("*", path)


def _deeper(name: str, path: str) -> str:
    """The module one level below `path` on the way to a parameter; `path` if it holds the parameter."""
    depth = path.count(".") + 2
    parts = name.split(".")
    return ".".join(parts[:depth]) if len(parts) > depth else path


def _parent(name: str) -> str:
    return name.rpartition(".")[0] or name


_PASSES = 3  # the first, the middle and the last pass that reached a module
_MOST_ELEMENTS = 1 << 22  # the most elements of a module at a pass


class Histogram(NamedTuple):
    """The number of elements in each of BINS equal parts from `low` to `high`. Elements that are not finite are left
    out."""

    low: float
    high: float
    counts: np.ndarray


class Binned(NamedTuple):
    """The histograms of an activation, a parameter or a gradient (`what`) by pass, each from the least to the largest
    element that was counted; or those of the parameters or gradients of a module. `last` is that of a leaf when the
    recording ended or its module was freed, with the number of the last pass before."""

    name: str
    what: str
    histograms: dict[int, Histogram]
    last: tuple[int, Histogram] | None = None

    @property
    def elements(self) -> int:
        """The most elements that were counted at once."""
        known = [*self.histograms.values(), *([self.last[1]] if self.last is not None else [])]
        return max(int(histogram.counts.sum()) for histogram in known)


def distributions(query: Query, module_of: Grouping) -> list[Binned]:
    """The parameters, and the gradients that they accumulated, of the modules whose elements are all known at the
    chosen passes."""
    trace = query.trace
    came = trace.table(Kind.ACCUMULATED)
    leaves, places = np.unique(came["tensor"], return_inverse=True)
    names = [module_of(leaf) for leaf in leaves.tolist()]
    found = []
    for name in dict.fromkeys(names):
        in_module = np.array([one == name for one in names])[places]
        numbers = distinct(came["in_pass"][in_module & (came["in_pass"] > 0)])
        chosen = numbers[distinct(np.linspace(0, len(numbers) - 1, _PASSES).astype(int))] if len(numbers) else []
        parts = {int(number): np.flatnonzero(in_module & (came["in_pass"] == number)) for number in chosen}
        gradients, parameters = (
            {number: _elements(query, came[field][at], came.events[at]) for number, at in parts.items()}
            for field in ("gradient", "tensor")
        )
        of_parameters, of_gradients = _histograms(parameters), _histograms(gradients)
        if of_parameters and of_gradients:
            found += [Binned(name, "parameters", of_parameters), Binned(name, "gradients", of_gradients)]
    return found


def _elements(query: Query, tensors: np.ndarray, events: np.ndarray) -> np.ndarray | None:
    """The elements of tensors, each at an event; None if the elements of a tensor are not known, or are too many."""
    states = query.trace.states
    rows = query.memory.rows_of(tensors, events)
    sizes = [np.prod(form.shape) for row in rows.tolist() if row >= 0 and (form := states.form(row)) is not None]
    if len(sizes) < len(rows) or sum(sizes) > _MOST_ELEMENTS:
        return None
    parts = list(states.elements(rows))
    if sum(len(known) for known, _ in parts) < len(rows) or any(np.iscomplexobj(part) for _, part in parts):
        return None
    return np.concatenate([np.zeros(0), *(part.astype(np.float64).ravel() for _, part in parts)])


def _histograms(elements: dict[int, np.ndarray | None]) -> dict[int, Histogram]:
    """The histograms of several passes over one range; none if the elements of a pass are not known, or if all are
    equal."""
    known = {number: values[np.isfinite(values)] for number, values in elements.items() if values is not None}
    together = np.concatenate([np.zeros(0), *known.values()])
    if len(known) < len(elements) or not len(together) or together.min() == together.max():
        return {}
    low, high = float(together.min()), float(together.max())
    counts = {number: counts_between(values, low, high) for number, values in known.items()}
    histograms = {number: Histogram(low, high, one) for number, one in counts.items() if one is not None}
    return histograms if len(histograms) == len(known) else {}


def binned(query: Query) -> list[Binned]:
    """The recorded histograms, in the order in which their tensors came first. A histogram that is not fully known, as
    in a redacted trace, is left out."""
    trace = query.trace
    trace.reach_all()
    table = trace.table(Kind.BINNED)
    leaves = _of_leaves(query)
    if not len(table):
        return leaves
    counts = table.lists("counts")
    began = trace.table(Kind.PASS_BEGAN)
    found: dict[tuple[str, str], dict[int, Histogram]] = {}
    following = np.append(began["number"], 0)  # the first pass behind an event
    for row, event in enumerate(table.events.tolist()):
        low, high = float(table["low"][row]), float(table["high"][row])
        number = int(table["in_pass"][row] or following[np.searchsorted(began.events, event)])
        in_bins = counts.of(row)[:, 0]
        if number and low < high and len(in_bins):
            what = trace.text(int(table["what"][row]))
            name = trace.text(int(table["module"][row])) or query.labels.of(int(table["tensor"][row]))
            found.setdefault((name, what), {})[number] = Histogram(low, high, in_bins)
    last = {(one.name, one.what): one.last for one in leaves}
    return [Binned(*key, histograms, last.get(key)) for key, histograms in found.items()]


def _of_leaves(query: Query) -> list[Binned]:
    """The histograms of leaves that an ordinary recording has: first of all parameters, then of all gradients."""
    trace = query.trace
    found: dict[tuple[int, str], dict[int, Histogram]] = {}
    last: dict[tuple[int, str], tuple[int, Histogram]] = {}
    for number, one in sorted(trace.leaf_histograms, key=lambda pair: pair[0]):
        if trace.find_pass(number) is None or not one.low < one.high:
            continue
        histogram = Histogram(one.low, one.high, np.frombuffer(one.counts, COUNTS).astype(np.int64))
        key = one.tensor, one.what.removeprefix(LAST)
        by_pass = found.setdefault(key, {})
        if one.what.startswith(LAST):
            last[key] = number, histogram
        else:
            by_pass[number] = histogram
    order = sorted(found, key=lambda key: (key[1] != "parameter", key[0]))
    return [Binned(query.labels.of(key[0]), key[1], found[key], last.get(key)) for key in order]
