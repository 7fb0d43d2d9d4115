"""Text for a console that lacks characters: `∂` becomes `d`, `→` becomes `->`. A Korean console (cp949) has these
characters and keeps them; a cp1252 console has neither."""

import codecs
import re
import unicodedata

SHOWN = "gradviz"  # the name of the error handler for streams that text is shown on

_INSTEAD = {
    "→": "->", "←": "<-", "↑": "^", "↓": "v", "↔": "<->", "⇒": "=>",
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": "x", "÷": "/", "·": "*", "•": "*", "±": "+/-", "√": "sqrt",
    "∂": "d", "∇": "grad", "Σ": "sum", "∑": "sum", "∏": "prod", "∞": "inf", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~",
    "⌊": "floor(", "⌋": ")", "∕": "/",
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "eps", "λ": "lambda", "μ": "mu", "π": "pi",
    "\N{MICRO SIGN}": "u",
    "σ": "sigma", "τ": "tau", "φ": "phi", "ψ": "psi", "Φ": "Phi", "Γ": "Gamma",
    "✓": "+", "✗": "x", "●": "o", "◉": "@", "○": ".", "◆": "#", "◇": "<>", "■": "#", "□": "[]", "█": "#", "▏": "|",
    "▶": ">", "▸": ">", "▹": ">", "▾": "v", "◀": "<", "▲": "^", "▼": "v", "›": ">", "‹": "<", "⟩": ">", "⟨": "<",
    "▁": "_", "▂": ".", "▃": "-", "▄": "~", "▅": "=", "▆": "+", "▇": "*",
    "‘": "'", "’": "'", "“": '"', "”": '"', "…": "...", "\N{NO-BREAK SPACE}": " ", "\N{REPLACEMENT CHARACTER}": "?",
    "\N{COMBINING CIRCUMFLEX ACCENT}": "^", "↳": ">", "▥": "#",
}  # fmt: skip

_RAISED = re.compile(r"(\^[\w+-])\^(?=[\w+-])")  # of a power of several signs


def encoded(text: str, encoding: str) -> bytes:
    """Text as bytes that a console with this encoding can show."""
    return text.encode(encoding, SHOWN)


def _shown(error: UnicodeError) -> tuple[str, int]:
    """The replacement for characters that a codec lacks: similar characters, or their numbers."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = "".join(map(instead, error.object[error.start : error.end]))
    return _RAISED.sub(r"\1", text), error.end


def instead(character: str) -> str:
    """ASCII that replaces a character, behind ^ if it is raised; its number if there is nothing similar."""
    if character in _INSTEAD:
        return _INSTEAD[character]
    name = unicodedata.name(character, "")
    if name.startswith("BOX DRAWINGS"):
        return _line(name)
    if name.startswith("BRAILLE PATTERN"):  # a character of a spinner
        return "*"
    if (parts := unicodedata.decomposition(character)).startswith("<super>"):
        return "^" + instead(chr(int(parts.split()[1], 16)))
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain or character.encode("ascii", "backslashreplace").decode()


def _line(name: str) -> str:
    """A line of a box, or a corner where lines meet."""
    directions = {"VERTICAL", "HORIZONTAL", "UP", "DOWN", "LEFT", "RIGHT", "ARC"} & {*name.split()}
    if directions <= {"HORIZONTAL", "LEFT", "RIGHT"}:
        return "-"
    return "|" if directions <= {"VERTICAL", "UP", "DOWN"} else "+"


codecs.register_error(SHOWN, _shown)
