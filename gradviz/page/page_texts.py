"""The page's own texts in other languages than English."""

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, unescape

from gradviz.words.languages import texts
from gradviz.words.words import Words

STATIC = re.compile(r"""(?P<before>\b(?:title|aria-label|placeholder)=")(?P<words>[^"]+)|(?P<end>>)(?P<text>[^<>@]+)""")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)+)"')


def in_language(page: str, language: str) -> str:
    """The elements of the page, with their texts in a language."""
    known = texts(language)

    def put(found: re.Match[str]) -> str:
        text = found["words"] or found["text"]
        translation = known.get(unescape(text.strip()))
        shown = text if translation is None else text.replace(text.strip(), escape(translation))
        return (found["before"] or found["end"]) + shown

    return STATIC.sub(put, page).replace('<html lang="en">', f'<html lang="{language}">')


def texts_of_scripts(scripts: Sequence[str], language: str) -> dict[str, str]:
    """The translations of the texts that the scripts of the page use, by the English texts."""
    known = texts(language)
    literals = {literal for script in scripts for literal in LITERAL.findall(script)}
    return {english: known[english] for english in sorted(literals & known.keys())}


def with_line(text: str, pattern: str, words: Words) -> str:
    """A text whose line number, found by `pattern`, is written in the language of the page."""
    return re.sub(pattern, lambda found: words.say("line {line}", line=found[1]), text)
