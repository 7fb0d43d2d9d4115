"""`state_dict` and `load_state_dict` of a Module."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping
from typing import Any

from gradviz.engine.core.state import no_grad
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.tensors.writing import overwrite


class _IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):
    """The keys that only the module, or only the saved state, has."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()

    __str__ = __repr__


class StateDict:
    """`state_dict` and `load_state_dict` of a Module."""

    def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> OrderedDict[str, Any]:
        """Parameters and persistent buffers by path. They share memory with those of the module."""
        return OrderedDict(
            (path, tensor if keep_vars else tensor.detach()) for path, tensor in self._saved_tensors(prefix)
        )

    def _saved_tensors(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        own: Any = self
        for name, parameter in own._parameters.items():
            if parameter is not None:
                yield prefix + name, parameter
        for name, buffer in own._buffers.items():
            if buffer is not None and name not in own._transient:
                yield prefix + name, buffer
        for name, module in own._modules.items():
            if module is not None:
                yield from module._saved_tensors(f"{prefix}{name}.")

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Copy saved tensors into those of this module.

        Raises RuntimeError that names all keys that are missing, unexpected or of another shape. Then the module does
        not change. Without `strict` only the shapes have to agree."""
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        if assign:
            raise NotImplementedError("gradviz does not assign in load_state_dict: leave assign out, it copies.")
        own = dict(self._saved_tensors(""))
        missing = [path for path in own if path not in state_dict]
        unexpected = [path for path in state_dict if path not in own]
        problems = [
            problem for path in own if path in state_dict for problem in _unfit(path, own[path], state_dict[path])
        ]
        if strict and missing:
            problems.insert(0, f"Missing key(s) in state_dict: {_quoted(missing)}. ")
        if strict and unexpected:
            problems.insert(0, f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. ")
        if problems:
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t" + "\n\t".join(problems))
        given = [(own[path], state_dict[path]) for path in own if path in state_dict]
        with no_grad():
            for tensor, saved in given:
                overwrite(tensor, saved.array, "load_state_dict", saved)
        return _IncompatibleKeys(missing, unexpected)


def _unfit(path: str, own: Tensor, saved: Any) -> Iterator[str]:
    if not isinstance(saved, Tensor):
        yield (
            f'While copying the parameter named "{path}", expected torch.Tensor or Tensor-like object from '
            f"checkpoint but received {type(saved)}"
        )
    elif saved.shape != own.shape:
        yield (
            f"size mismatch for {path}: copying a param with shape {saved.shape} from checkpoint, "
            f"the shape in current model is {own.shape}."
        )


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
