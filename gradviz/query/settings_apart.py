"""Settings of optimizers that differ between the ranks of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradviz.events.kinds import Stepped
from gradviz.query.of_one_rank import settings_by_parameter
from gradviz.query.optimizer_settings import settings_of
from gradviz.query.query import Query


@dataclass(frozen=True, slots=True)
class OtherSetting:
    """A setting of an optimizer that differs between the ranks at a step, which counts from 1."""

    name: str
    step: int
    values: tuple[Any, ...]


def settings_apart(
    queries: Sequence[Query], steps: Sequence[tuple[Stepped, ...]], common: Sequence[str]
) -> list[OtherSetting]:
    """The settings that differ between the ranks, each at the first of the `steps` at which it does. `common` are the
    names of the parameters that all ranks have."""
    differing: dict[str, OtherSetting] = {}
    for number, together in enumerate(steps, 1):
        types = tuple(step.type for step in together)
        if len(set(types)) > 1:
            differing.setdefault("optimizer", OtherSetting("optimizer", number, types))
        if len({(step.type, len(step.groups)) for step in together}) > 1:
            continue
        for groups in zip(*(step.groups for step in together), strict=True):
            if len({group.settings for group in groups}) > 1:
                for name, values in _apart([settings_of(group) for group in groups]).items():
                    differing.setdefault(name, OtherSetting(name, number, values))
        if not differing and number == 1:  # equal groups may hold different parameters
            differing |= _of_a_parameter(queries, together, common)
    return list(differing.values())


def _of_a_parameter(
    queries: Sequence[Query], together: Sequence[Stepped], common: Sequence[str]
) -> dict[str, OtherSetting]:
    """The settings of the first parameter whose settings differ between the ranks at the first step; empty if there is
    none."""
    of_ranks = [settings_by_parameter(query, step) for query, step in zip(queries, together, strict=True)]
    for parameter in (name for name in common if all(name in settings for settings in of_ranks)):
        apart = _apart([known[parameter] for known in of_ranks])
        if apart:
            return {name: OtherSetting(f"{name} of {parameter}", 1, values) for name, values in apart.items()}
    return {}


def _apart(settings: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """The settings that differ, by name, with the value of each rank."""
    values = {name: tuple(of_rank.get(name) for of_rank in settings) for name in settings[0]}
    return {name: each for name, each in values.items() if len(set(map(repr, each))) > 1}
