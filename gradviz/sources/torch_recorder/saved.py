"""The tensors that nodes saved, read without running code of the program."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from gradviz.events.field_types import Saved
from gradviz.sources.torch_needs import optional
from gradviz.sources.torch_recorder.known_things import Known, grad_fn_of, version_of
from gradviz.sources.torch_recorder.pytorchs_own import data_ptr, stride, untyped_storage

RAW = "_raw_saved_"  # the beginning of the attribute names of saved tensors
HAVE_DATA = hasattr(torch._C._autograd.SavedTensor, "data")  # from 2.10 on
_dispatch_modes = torch._C._len_torch_dispatch_stack
_SavedTensor: Any = torch._C._autograd.SavedTensor
_WITH_MEMORY = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
_hooks = optional(torch, "_C._autograd._top_saved_tensors_default_hooks")  # not in 2.5
IS_KNOWN = HAVE_DATA or _hooks is not None  # whether saved tensors can be read at all


def saved_as_is(fn: Any, name: str, is_new: bool) -> Any:
    """The saved value of a node under a name that begins with RAW: one or several, to be given to `data_of`. Before
    2.10 a tensor can only be unpacked, which runs the program's hooks if there are any: then the result is None,
    unless the node `is_new` and this thread has no such hooks. Raises RuntimeError and AttributeError if nothing is
    saved, or no longer."""
    if HAVE_DATA:
        return getattr(fn, name)
    if not is_new or _hooks is None or _hooks(True) is not None:
        return None
    unpacked = "saved_tensors" if isinstance(fn, torch._C._FunctionBase) else name.removeprefix("_raw")
    with torch._C._DisableTorchDispatch():
        return getattr(fn, unpacked)


def data_of(saved: Any) -> Any:
    """The saved tensor, read without any mode seeing it; None if hooks packed it."""
    if not HAVE_DATA:
        return saved
    if not torch._C._len_torch_dispatch_stack():
        return getattr(saved, "data", None)
    with torch._C._DisableTorchDispatch():
        return getattr(saved, "data", None)


class SavedTensors:
    """Finds the known tensors that nodes saved. `key` is the key of a node's record in its metadata."""

    def __init__(self, known: Mapping[int, Known], key: str) -> None:
        self.known, self.key = known, key
        self._names: dict[type, tuple[str, ...]] = {}

    def names(self, fn: Any) -> tuple[str, ...]:
        """The attributes of a node that hold its saved values."""
        names = self._names.get(type(fn))
        if names is None:
            names = self._names[type(fn)] = tuple(name for name in dir(fn) if name.startswith(RAW))
        return names

    def unchanged(self, fn: Any) -> list[tuple[str, torch.Tensor]]:
        """The tensors that a node saved, by their names there. A tensor that hooks packed is left out, as unpacking it
        runs the program's code; so is a tensor that was written to or freed since."""
        found = []
        for attribute in self.names(fn):
            name = attribute.removeprefix(RAW)
            try:
                raw = getattr(fn, attribute)
                parts = raw if isinstance(raw, (tuple, list)) else (raw,)
                if all(part.unpack_hook is None for part in parts):
                    getattr(fn, f"_saved_{name}")  # raises if it was written to since
                    found += [(name, part.data) for part in parts]
            except (RuntimeError, AttributeError):
                continue
        return [(name, saved) for name, saved in found if isinstance(saved, torch.Tensor)]

    def by(self, fn: Any, candidates: Sequence[torch.Tensor]) -> list[Saved]:
        """The known tensors that a node saved. `candidates` are the tensors of its op, which may be saved as another
        tensor on the same memory."""
        each = [self._one(saved, candidates) for saved in self._held(fn, bool(candidates))]
        entries = [entry for entry in each if entry is not None]
        if len(entries) > 1:  # PyTorch's order is alphabetical
            order = {self.known[id(tensor)].number: at for at, tensor in enumerate(candidates)}
            entries.sort(key=lambda entry: order.get(entry.tensor, -1))
        return entries

    def of(self, raw: Any, candidates: Sequence[torch.Tensor]) -> list[Saved]:
        """The known tensors in one attribute of a node."""
        each = [self._one(saved, candidates) for saved in (raw if type(raw) in (tuple, list) else (raw,))]
        return [entry for entry in each if entry is not None]

    def flat(self, fn: Any, names: Sequence[str], candidates: Sequence[torch.Tensor]) -> Sequence[int]:
        """The known tensors that a node saved under these names, flat: (number, version, ...). A faster form of
        `by`."""
        known = self.known
        is_plain = HAVE_DATA and not _dispatch_modes()
        pairs: list[tuple[int, int]] = []
        for name in names:
            try:
                raw = getattr(fn, name) if is_plain else saved_as_is(fn, name, True)
            except (RuntimeError, AttributeError):  # nothing was saved
                continue
            if not is_plain:
                pairs += self.of(raw, candidates)
                continue
            data: Any = raw.data if type(raw) is _SavedTensor else raw
            if data is None:
                continue
            one = known.get(id(data))
            if one is None:
                pairs += self.of(raw, candidates)
                continue
            try:
                pairs.append((one.number, data._version))
            except RuntimeError:  # a tensor of inference mode
                pairs.append((one.number, 0))
        if len(pairs) < 2:
            return pairs[0] if pairs else ()
        order = {known[id(tensor)].number: at for at, tensor in enumerate(candidates)}
        placed = sorted([(order.get(pair[0], -1), at, *pair) for at, pair in enumerate(pairs)])
        return [part for _, _, *pair in placed for part in pair]

    def _one(self, saved: Any, candidates: Sequence[torch.Tensor]) -> Saved | None:
        data = data_of(saved)
        if not isinstance(data, torch.Tensor):  # nothing was saved, or hooks packed it
            return None
        known = self.known.get(id(data)) or self._twin(data, candidates)
        number = self._number_by_node(data) if known is None else known.number
        return Saved(number, version_of(data)) if number else None

    def _twin(self, tensor: torch.Tensor, candidates: Sequence[torch.Tensor]) -> Known | None:
        """The entry of the candidate that shows the same memory in the same way."""
        if type(tensor) not in _WITH_MEMORY or tensor.layout is not torch.strided or tensor.is_nested:
            return None
        shape, place = tensor.shape, 0
        for one in candidates:
            if type(one) not in _WITH_MEMORY or one.is_nested or one.shape != shape:
                continue
            if one.layout is not torch.strided:
                continue
            place = place or _memory_of(tensor)
            if place and _memory_of(one) == place and stride(one) == stride(tensor):
                return self.known.get(id(one))
        return None

    def _number_by_node(self, tensor: torch.Tensor) -> int:
        """The number of an unknown tensor, found by its node; 0 if there is none."""
        fn = grad_fn_of(tensor)
        record = None if fn is None else fn.metadata.get(self.key)
        return 0 if record is None else record.tensor(tensor.output_nr)

    def storages(self, roots: Sequence[Any]) -> Iterator[tuple[Any, int, int]]:
        """The nodes behind `roots`, each with the identity and the bytes of every storage that it saved. What hooks
        packed is left out, and before PyTorch 2.10 all that was saved."""
        waiting = list(dict.fromkeys(roots))
        reached = set(waiting)
        for fn in waiting:  # which grows
            for data in map(data_of, self._held(fn, is_new=False)):
                if isinstance(data, torch.Tensor) and (storage := storage_of(data)) is not None:
                    yield (fn, *storage)
            targets = dict.fromkeys(target for target, _ in fn.next_functions if target is not None)
            waiting += [target for target in targets if target not in reached]
            reached.update(targets)

    def _held(self, fn: Any, is_new: bool) -> Iterator[Any]:
        """The saved values of a node, one after another, to be given to `data_of`."""
        for name in self.names(fn):
            try:
                raw = saved_as_is(fn, name, is_new)
            except (RuntimeError, AttributeError):  # freed already, or nothing was saved
                continue
            yield from raw if type(raw) in (tuple, list) else (raw,)


def storage_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The identity and the size in bytes of a tensor's storage; None if it has none."""
    try:
        storage = untyped_storage(tensor)
        return storage._cdata, storage.nbytes()
    except (NotImplementedError, RuntimeError):  # it is sparse, or wraps other tensors
        return None


def _memory_of(tensor: torch.Tensor) -> int:
    """The address of a strided tensor's first element; 0 if it has none."""
    try:
        return data_ptr(tensor)
    except RuntimeError:
        return 0
