"""The names in the program of modules, with which the names of their parameters begin, and of tensors in its
collections and objects."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from types import FrameType
from typing import Any

_Variable = tuple[str, Any]
_DEEPEST = 100  # the most frames that are searched
_LARGEST = 1000  # the most elements of a collection that is searched
_INWARD = 3  # the most steps into what a variable holds, to a tensor
_INDEX = re.compile(r"\[\d")
_MODULES = ("ModuleList", "ModuleDict")  # modules that are collections: nobody calls them
_COMPILED = "_orig_mod"  # the module in an OptimizedModule, which has its attributes, too
_LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def holder_of(thing: Any, frame: FrameType | None) -> str:
    """The variable that holds a module, in a frame or in the frames that called it: `net`, also for `self.net`. If a
    collection or another module holds it, its path there: `layers.0`, `net.encoder`. Empty if none does. Names that
    begin with `_`, and `self`, do not count; a library's variables only where the program has none."""
    thing = _compiled_in(thing)
    return next((name for variables in _spaces(frame) if (name := _name_in(variables, thing))), "")


def parts_held(module: Any, frame: FrameType | None) -> dict[int, str]:
    """The paths of the program's modules, of their parts and of their parameters, by identity, if a library has put
    them into a module of its own: it calls `module` in this frame, or has made its class, as `likelihood` and `model`
    in `mll`. Empty elsewhere."""
    if frame is None or not (_is_in_library(frame.f_code.co_filename) or _is_wrapper(module)):
        return {}
    return {
        id(part): f"{name}.{path}" if path else name
        for name, module in outermost_modules(frame, of_program=True).items()
        for of in ("modules", "parameters")
        for path, part in members(module, of)
    }


def outermost_modules(frame: FrameType | None, of_program: bool = False) -> dict[str, Any]:
    """The modules in the variables of a frame and of the frames that called it, perhaps without a library's, by the
    names that `holder_of` gives them; without modules inside other modules, unless these are a library's wrappers,
    which come first."""
    spaces = list(_spaces(frame, of_program))
    held = (one for space in spaces for variable in space for _, one in _modules_in(*variable))
    modules = {id(thing): thing for thing in map(_compiled_in, held)}
    whole = [thing for thing in modules.values() if not _is_wrapper(thing)]
    inner = {id(part) for thing in whole for _, part in members(thing) if part is not thing}
    outer = sorted((thing for key, thing in modules.items() if key not in inner), key=_is_wrapper)
    names = [next(name for space in spaces if (name := _name_in(space, thing))) for thing in outer]
    return dict(zip(reversed(names), reversed(outer), strict=True))  # of equal names the nearest counts


def parameters_below(modules: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parameters of modules, each with its path: `net.0.weight`."""
    for name, module in modules.items():
        for path, parameter in members(module, "parameters"):
            yield f"{name}.{path}", parameter


def members(module: Any, of: str = "modules", **options: bool) -> list[tuple[str, Any]]:
    """The result of `named_modules`, `named_parameters` or `named_buffers` of a module, without what `torch.compile`
    puts into the paths. They ask for the hash of every module inside; if one has none, or if an option is not known,
    the result is empty."""
    try:
        found = list(getattr(module, f"named_{of}")(**options))
    except TypeError:
        return []
    return [(".".join(part for part in path.split(".") if part != _COMPILED), one) for path, one in found]


def tied_parameters(module: Any) -> list[tuple[str, Any]]:
    """The further paths of parameters that several modules share, each with its parameter. Empty if the module lists
    each parameter once, whatever it is asked for."""
    first = {path for path, _ in members(module, "parameters")}
    return [pair for pair in members(module, "parameters", remove_duplicate=False) if pair[0] not in first]


def tensor_paths(tensors: Sequence[Any], frame: FrameType | None) -> list[tuple[int, str]]:
    """The paths by which the program reaches tensors inside the variables of a frame or of the frames that called it,
    each with the place of its tensor: `w["bias"]`, `layers[0].w` of objects in a list. Keys and attributes go before
    indices. There is none for a Parameter, nor if a variable holds each of them itself. Frames behind that which has
    all are not looked at: what has been read of a frame is kept with it."""
    wanted = {id(one) for one in tensors if all(base.__name__ != "Parameter" for base in type(one).__mro__)}
    paths: list[tuple[str, int]] = []
    spaces = _spaces(frame, of_program=True)
    while not wanted <= {key for _, key in paths} and (space := next(spaces, None)) is not None:
        reached = chain.from_iterable(islice(_reached(name, value, _INWARD), _LARGEST) for name, value in space)
        paths += [(path, id(held)) for path, held in reached if id(held) in wanted]
    if wanted <= {key for path, key in paths if path.isidentifier()}:
        return []
    inside = [pair for pair in paths if not pair[0].isidentifier()]
    inside.sort(key=lambda pair: len(_INDEX.findall(pair[0])))
    path_of = {key: path for path, key in reversed(inside)}  # of those with as many indices the nearest
    return [(at, path_of[id(one)]) for at, one in enumerate(tensors) if id(one) in path_of]


def _reached(path: str, value: Any, depth: int) -> Iterator[_Variable]:
    """What a variable holds: itself, the elements of its collections, and the attributes of the program's objects."""
    yield path, value
    if depth == 0 or _is_module(value):
        return
    pairs: Iterable[tuple[str, Any]] = ()
    if type(value) in (list, tuple):
        pairs = ((f"[{index}]", element) for index, element in enumerate(value))
    elif issubclass(type(value), dict):
        keyed = [(key, element) for key, element in dict.items(value) if type(key) in (int, str)]
        pairs = ((f'["{key}"]' if type(key) is str else f"[{key}]", element) for key, element in keyed)
    elif _is_of_program(type(value)):
        pairs = ((f".{name}", attribute) for name, attribute in [*object.__getattribute__(value, "__dict__").items()])
    for step, element in pairs:
        yield from _reached(f"{path}{step}", element, depth - 1)


def _spaces(frame: FrameType | None, of_program: bool = False) -> Iterator[list[_Variable]]:
    """The variables of a frame, and of the frames that called it; a library's come last, or not at all. Variables of
    gradviz's own frames are left out: in `gradviz.draw(net, x)` they are not the program's."""
    librarys = []
    for _ in range(_DEEPEST):
        if frame is None:
            break
        if not f"{frame.f_globals.get('__name__')}.".startswith("gradviz."):
            if _is_in_library(frame.f_code.co_filename):
                librarys.append(frame)
            else:
                yield _variables_of(frame)
        frame = frame.f_back
    yield from map(_variables_of, () if of_program else librarys)


def _is_in_library(file: str) -> bool:
    return any(folder in file for folder in _LIBRARIES)


def _is_of_program(kind: type) -> bool:
    """Whether a class is the program's own, and its objects have attributes of their own."""
    module = kind.__module__
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_librarys = module in sys.stdlib_module_names or _is_in_library(file)
    return kind.__dictoffset__ != 0 and not is_librarys and not f"{module}.".startswith("gradviz.")


def _is_wrapper(module: Any) -> bool:
    """Whether a module is a library's, which takes modules of the program. PyTorch's own containers are none: the names
    that they give are the program's."""
    kind = type(module)
    return not _is_of_program(kind) and not kind.__module__.startswith(("torch.nn.modules.", "gradviz."))


def _variables_of(frame: FrameType) -> list[_Variable]:
    """The variables that a frame sees: its own, those of its `self`, and those of its file; its arguments come last,
    since a function may be called with several modules."""
    code, own = frame.f_code, frame.f_locals
    given = {name: own[name] for name in code.co_varnames[: code.co_argcount] if name in own}
    own = {name: own[name] for name in own if name not in given}
    spaces = [own, getattr(given.get("self"), "__dict__", {}), frame.f_globals, given]
    return [
        (name, value)
        for space in spaces
        for name, value in list(space.items())
        if isinstance(name, str) and not name.startswith("_") and name != "self"
    ]


def _modules_in(name: str, value: Any) -> list[_Variable]:
    """A module in a variable, or the modules in its collection, each with its path."""
    return [(name, value)] if _is_module(value) else [(f"{name}.{key}", one) for key, one in _elements(value)]


def _name_in(variables: Sequence[_Variable], thing: Any) -> str:
    """The name of a module among some variables. In `for layer in layers` each module would be `layer`: an element of a
    collection has its path there, unless all elements have variables of their own."""
    alone = {id(value) for _, value in variables}
    for name, value in variables:
        elements = dict(_elements(value))
        if any(id(element) not in alone for element in elements.values()):
            for key, element in elements.items():
                if element is thing:
                    return f"{name}.{key}"
    direct = next((name for name, value in variables if value is thing), "")
    return direct or next((path for name, value in variables if (path := _path_below(name, value, thing))), "")


def _elements(value: Any) -> Iterator[tuple[Any, Any]]:
    """The modules in a collection, by their keys."""
    if type(value) in (list, tuple) and len(value) <= _LARGEST:
        pairs: Any = enumerate(value)
    elif type(value) is dict and len(value) <= _LARGEST:
        pairs = list(value.items())
    elif _is_module(value) and type(value).__name__ in _MODULES:
        pairs = list(value._modules.items())
    else:
        return
    yield from ((key, element) for key, element in pairs if _is_module(element))


def _path_below(name: str, value: Any, thing: Any) -> str:
    """The path of a module below another module, or below a module in a collection; empty if it is not there."""
    owners = _modules_in(name, value)
    found = (f"{prefix}.{path}" for prefix, owner in owners for path, part in members(owner) if part is thing)
    return next(found, "").removesuffix(".")


def _compiled_in(module: Any) -> Any:
    """The module that was given to `torch.compile`, of what that returned; any other module itself."""
    return getattr(module, _COMPILED) if type(module).__name__ == "OptimizedModule" else module


def _is_module(value: Any) -> bool:
    """Whether a value is a module of PyTorch or of gradviz's engine, which are not imported here."""
    is_one = any(base.__name__ == "Module" for base in type(value).__mro__)
    return is_one and hasattr(type(value), "named_modules")
