"""The settings of optimizers as JSON, which is emitted at every step and mostly is the same text again."""

import json
import marshal
from collections.abc import Callable
from typing import Any

_MOST = 100  # the most texts that are kept


class SettingsText:
    """Writes settings as JSON. `text_of` gives a text for a value that has no form in JSON."""

    def __init__(self, text_of: Callable[[Any], Any]) -> None:
        self._encode = json.JSONEncoder(default=text_of).encode  # `json.dumps` makes such an object at each call
        self._known: dict[bytes, str] = {}

    def __call__(self, settings: dict[str, Any]) -> str:
        try:
            key = marshal.dumps(settings)
        except ValueError:  # a value of another type, which may change and stay the same object
            return self._encode(settings)
        text = self._known.get(key)
        if text is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            text = self._known[key] = self._encode(settings)
        return text
