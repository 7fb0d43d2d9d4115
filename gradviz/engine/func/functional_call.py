"""Calling a module with other parameters."""

from __future__ import annotations

from typing import Any


def functional_call(
    module: Any,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call a module with other parameters and buffers, given by name. Afterwards it has its own again.

    With `tie_weights`, a tensor that the module has under several names is replaced under all of them.

    Raises RuntimeError, if `strict`, where a name is missing or unknown, and AttributeError where it is unknown."""
    several = isinstance(parameter_and_buffer_dicts, (tuple, list))
    given = {name: value for part in (parameter_and_buffer_dicts if several else [parameter_and_buffer_dicts])
             for name, value in part.items()}  # fmt: skip
    slots = {name: slot for kind in ("_parameters", "_buffers") for name, slot in _slots_of(module, kind)}
    if strict and given.keys() != slots.keys():
        missing, extra = sorted(slots.keys() - given.keys()), sorted(given.keys() - slots.keys())
        raise RuntimeError(f"functional_call: missing {missing or 'none'}, not the module's {extra or 'none'}")
    for name in given.keys() - slots.keys():
        raise AttributeError(f"{type(module).__name__} has no parameter or buffer {name!r}")
    held = {name: owner[key] for name, (owner, key) in slots.items()}
    if tie_weights:
        by_tensor = {id(held[name]): value for name, value in given.items()}
        given = {name: by_tensor[id(held[name])] for name in held if id(held[name]) in by_tensor} | given
    try:
        for name, value in given.items():
            owner, key = slots[name]
            owner[key] = value
        args = () if args is None else args if isinstance(args, tuple) else (args,)
        return module(*args, **(kwargs or {}))
    finally:
        for name, (owner, key) in slots.items():
            owner[key] = held[name]


def _slots_of(module: Any, kind: str) -> list[tuple[str, tuple[dict, str]]]:
    """Where a module and its submodules hold their parameters, or buffers: dict and key by full name."""
    return [
        (f"{path}.{key}" if path else key, (getattr(part, kind), key))
        for path, part in module.named_modules(remove_duplicate=False)
        for key, value in getattr(part, kind).items()
        if value is not None
    ]
