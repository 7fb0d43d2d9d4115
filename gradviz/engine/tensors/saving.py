"""`save` and `load`: tensors in dicts, lists and tuples, as a NumPy archive (.npz) without pickle.

The archive has each tensor as an array. Its entry `tree` is JSON that says where each tensor belongs. Loading a file
executes nothing in it.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, announce, new_tensor

FORMAT = 1
_PLAIN = (bool, int, float, str, type(None))
_DEEPEST = 100


def save(obj: Any, f: Any) -> None:
    """Write tensors, numbers and strings, in dicts, lists and tuples, to a path or binary file.

    Raises TypeError for anything else, before the file is opened."""
    arrays: dict[str, np.ndarray] = {}
    tree = {"format": FORMAT, "saved": _encoded(obj, arrays, 0)}
    arrays["tree"] = np.frombuffer(json.dumps(tree).encode(), np.uint8)
    if hasattr(f, "write"):
        np.savez(f, **arrays)  # type: ignore[arg-type]
        return
    with open(f, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _encoded(value: Any, arrays: dict[str, np.ndarray], depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"save: more than {_DEEPEST} containers within one another")
    if isinstance(value, Tensor):
        name = f"tensor{len(arrays)}"
        arrays[name] = value.array
        return {"tensor": name, "requires_grad": value.requires_grad and value.is_leaf}
    if isinstance(value, Mapping):
        pairs = value.items()
        return {"dict": [[_key(key), _encoded(part, arrays, depth + 1)] for key, part in pairs]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encoded(part, arrays, depth + 1) for part in value]}
    if type(value) in _PLAIN:
        return value
    raise TypeError(
        f"save takes tensors, numbers and strings, in dicts, lists and tuples, not {type(value).__name__}. "
        "Save a module's state_dict(), not the module."
    )


def _key(key: Any) -> Any:
    if type(key) in (str, int):
        return key
    raise TypeError(f"save takes dict keys that are strings or whole numbers, not {key!r}")


def load(f: Any, map_location: Any = None, *, weights_only: bool = True, **_: Any) -> Any:
    """Read what `save` wrote, from a path or a binary file.

    Raises RuntimeError for a file that `save` did not write, and FileNotFoundError."""
    try:
        with np.load(f, allow_pickle=False) as archive:
            return _read(archive)
    except FileNotFoundError:
        raise
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError, RecursionError,
        OverflowError, NotImplementedError, zipfile.BadZipFile, zlib.error, SyntaxError, RuntimeError,
    ) as error:  # fmt: skip
        name = os.fspath(f) if isinstance(f, (str, os.PathLike)) else "the file"
        raise RuntimeError(f"{name!s} is not a file that save wrote ({type(error).__name__}).") from None


def _read(archive: Any) -> Any:
    tree = json.loads(archive["tree"].tobytes().decode())
    if tree["format"] != FORMAT:
        raise ValueError(f"format {tree['format']}")
    return _decoded(tree["saved"], archive, 0)


def _decoded(value: Any, archive: Any, depth: int) -> Any:
    if type(value) in _PLAIN:
        return value
    if depth > _DEEPEST:
        raise ValueError("too deep")
    if "tensor" in value:
        return _tensor(archive[value["tensor"]], value["requires_grad"] is True)
    ((kind, parts),) = value.items()
    if kind == "dict":
        return {_key(key): _decoded(part, archive, depth + 1) for key, part in parts}
    made = [_decoded(part, archive, depth + 1) for part in parts]
    return {"list": list, "tuple": tuple}[kind](made)


def _tensor(array: np.ndarray, requires_grad: bool) -> Tensor:
    if array.dtype.kind not in "fciub":
        raise ValueError(f"an array of {array.dtype}")
    tensor = new_tensor(array, LEAF_EDGE if requires_grad and array.dtype.kind in "fc" else None)
    announce(tensor, "load")
    return tensor
