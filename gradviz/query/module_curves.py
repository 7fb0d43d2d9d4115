"""The course of training, by module: the loss and the learning rates, and the norms of gradients and changes of all
parameters of a module together, at every pass or step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.values import Stat
from gradviz.query.curves import Norms, accumulated_norms, change_norms, ratios
from gradviz.query.optimizer_settings import number_of, settings_of
from gradviz.query.pass_summaries import pass_summaries, step_summaries
from gradviz.query.query import Query
from gradviz.sets import contained, distinct


@dataclass(frozen=True, slots=True)
class NamedCurve:
    """Values over the passes or steps `at`. NaN where a value is not finite."""

    name: str
    at: np.ndarray
    values: np.ndarray


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
    first = np.where(
        roots.counts > 0, np.append(roots.elements, np.zeros((1, 4), np.int64), 0)[roots.starts, 2], 0
    )
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
    return [
        NamedCurve(_called_at(query, int(first[rows].max()), place[1]), began["number"][rows], values[rows])
        for place, rows in by_place.items()
    ]


def _called_at(query: Query, tensor: int, line: int) -> str:
    name = query.labels.of(tensor) if tensor else "loss"
    return f"{name} (line {line})" if line else name


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
    trace = query.trace
    stepped = trace.table(Kind.STEPPED)
    groups = stepped.lists("groups")
    texts = groups.elements[:, 0]
    rate_of = {text: number_of(settings_of(trace.text(text)).get("lr")) for text in distinct(texts).tolist()}
    rates = np.array([rate_of[text] for text in texts.tolist()])
    of_optimizer = (stepped["optimizer"][groups.owners] == optimizer) & ~np.isnan(rates)
    curves: list[tuple[list[int], NamedCurve]] = []
    for group in distinct(groups.positions[of_optimizer]).tolist():
        here = of_optimizer & (groups.positions == group)
        curve = NamedCurve("", groups.owners[here] + 1, rates[here])
        alike = (numbers for numbers, known in curves if _is_same(known, curve))
        numbers = next(alike, None)
        if numbers is None:
            curves.append(([group], curve))
        else:
            numbers.append(group)
    return curves


def _is_same(one: NamedCurve, other: NamedCurve) -> bool:
    return np.array_equal(one.at, other.at) and np.array_equal(one.values, other.values)


def _with_groups(name: str, curves: list[tuple[list[int], NamedCurve]]) -> list[NamedCurve]:
    """The curves of an optimizer by its name; with their groups if there are several."""
    if len(curves) == 1:
        return [replace(curve, name=name) for _, curve in curves]
    return [replace(curve, name=f"{name}, group {', '.join(map(str, numbers))}") for numbers, curve in curves]


def gradients_of_modules(query: Query, module_of: Grouping) -> list[NamedCurve]:
    """The norm of all gradients together that the parameters of a module accumulated in a pass."""
    norms = query.of(accumulated_norms)
    return _together(
        replace(norms, sizes=np.zeros_like(norms.values)), module_of, lambda values, sizes: values
    )


def gradients_of_parameters(query: Query) -> list[NamedCurve]:
    """The norm of all gradients together that parameters accumulated in a pass; of all leaves in a run without
    parameters."""
    parameters = query.trace.parameters.keys() - query.trace.buffers
    curves = gradients_of_modules(
        query, lambda leaf: "" if leaf in parameters or not parameters else "inputs"
    )
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
