"""Text for a console that lacks characters: `∂` becomes `d`, `→` becomes `->`. A Korean console (cp949) has these, and
keeps them; one of cp1252 has neither."""

from __future__ import annotations

import codecs
import unicodedata

SHOWN = "gradviz"  # the way of dealing with errors, for streams that text is shown on

_INSTEAD = {
    "→": "->", "←": "<-", "↑": "^", "↓": "v", "↔": "<->", "⇒": "=>",
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": "x", "÷": "/", "·": "*", "•": "*", "±": "+/-", "√": "sqrt",
    "∂": "d", "∇": "grad", "Σ": "sum", "∑": "sum", "∏": "prod", "∞": "inf", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~",
    "⌊": "floor(", "⌋": ")", "∕": "/", "⁻": "-",
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "eps", "λ": "lambda", "μ": "mu", "π": "pi",
    "\N{MICRO SIGN}": "u",
    "σ": "sigma", "τ": "tau", "φ": "phi", "ψ": "psi", "Φ": "Phi", "Γ": "Gamma",
    "✓": "+", "✗": "x", "●": "o", "◉": "@", "○": ".", "◆": "#", "◇": "<>", "■": "#", "□": "[]", "█": "#", "▏": "|",
    "▶": ">", "▸": ">", "▹": ">", "▾": "v", "◀": "<", "▲": "^", "▼": "v", "›": ">", "‹": "<", "⟩": ">", "⟨": "<",
    "▁": "_", "▂": ".", "▃": "-", "▄": "~", "▅": "=", "▆": "+", "▇": "*",
    "‘": "'", "’": "'", "“": '"', "”": '"', "…": "...", "\N{NO-BREAK SPACE}": " ", "\N{REPLACEMENT CHARACTER}": "?",
    "\N{COMBINING CIRCUMFLEX ACCENT}": "^", "↳": ">",
}  # fmt: skip


def encoded(text: str, encoding: str) -> bytes:
    """Text as bytes that a console of this encoding shows."""
    return text.encode(encoding, SHOWN)


def _shown(error: UnicodeError) -> tuple[str, int]:
    """What a codec writes for characters that it lacks: something like them, or their numbers."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = "".join(map(instead, error.object[error.start : error.end]))
    return text, error.end


def instead(character: str) -> str:
    """ASCII that stands for a character; its number where there is nothing like it."""
    if character in _INSTEAD:
        return _INSTEAD[character]
    name = unicodedata.name(character, "")
    if name.startswith("BOX DRAWINGS"):
        return _line(name)
    if name.startswith("BRAILLE PATTERN"):  # of a spinner
        return "*"
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain or character.encode("ascii", "backslashreplace").decode()


def _line(name: str) -> str:
    """A line of a box, or where lines meet."""
    directions = {"VERTICAL", "HORIZONTAL", "UP", "DOWN", "LEFT", "RIGHT", "ARC"} & {*name.split()}
    if directions <= {"HORIZONTAL", "LEFT", "RIGHT"}:
        return "-"
    return "|" if directions <= {"VERTICAL", "UP", "DOWN"} else "+"


codecs.register_error(SHOWN, _shown)
