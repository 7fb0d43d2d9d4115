"""Resolves `w`, `w.grad` or `t12` as typed by the user: a tensor, and whether its value or its gradient is meant."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gradviz.errors import GradvizError
from gradviz.nearest import nearest
from gradviz.query.changes import grad_changes, value_changes
from gradviz.sets import distinct
from gradviz.words.escape import clean, shortened
from gradviz.words.words import Words

_ELEMENT = re.compile(r"^(?P<name>.+?)\[(?P<index>[-\d\s,:]*)\]$")
_PARTS = {".grad": "grad", ".value": "value", ".data": "value", ".version": "value"}


class UnknownName(GradvizError):
    """No tensor has this name. The message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A tensor, and the part of it that is meant: `value`, `grad`, or both (empty)."""

    tensor: int
    called: str
    part: str = ""

    def __str__(self) -> str:
        return self.called + (".grad" if self.part == "grad" else "")


def subject(words: Words, text: str, k: int) -> Subject:
    """The tensor that `text` names at event k: the newest tensor so far with that name, otherwise the first later
    one. Raises UnknownName if there is none."""
    text = text.strip()
    tensor = _numbered(words, text) or words.query.labels.tensor_called(text, k)
    if tensor:
        return Subject(tensor, words.called(tensor) if not text[1:].isdigit() else text)
    for ending, part in _PARTS.items():
        if text.endswith(ending):
            named = subject(words, text.removesuffix(ending), k)
            return Subject(named.tensor, named.called, part)
    name = shortened(clean(text), 40)
    raise UnknownName("no tensor is called {name}: {hint}", name=name, hint=_suggested(words, text))


def element_of(text: str) -> tuple[str, str] | None:
    """The name and the index of an element as typed: `w` and `0, 2` of `w[0, 2]`; None for a name alone."""
    element = _ELEMENT.match(text)
    return None if element is None else (element["name"], element["index"])


def _numbered(words: Words, text: str) -> int:
    if not re.fullmatch(r"[t#][0-9]{1,10}", text):
        return 0
    number = int(text[1:])
    return number if words.trace.born(number) is not None else 0


def _suggested(words: Words, name: str) -> str:
    labels = words.query.names.all.labels[
        1:
    ]  # the names of tensors: a number may be assigned to a variable, too
    # leaves out a variable whose tensor was never recorded under its name
    labels = [label for label in labels if label != name]
    if near := nearest(name.removesuffix(".grad"), labels):
        return words.say("did you mean {name}?", name=clean(near))
    some = ", ".join(clean(label) for label in labels[:8]) + (", …" if len(labels) > 8 else "")
    if not labels:
        return words.say("no tensor of this run has a name; t12 is tensor number 12")
    return words.say("known names: {names}", names=some)


def changes(words: Words, about: Subject) -> np.ndarray:
    """The events that changed the subject, in order."""
    parts = []
    if about.part != "grad":
        parts.append(value_changes(words.query, about.tensor))
    if about.part != "value":
        parts.append(grad_changes(words.query, about.tensor))
    return distinct(np.concatenate(parts))
