"""The table of events for people, as in docs/trace-format.md. `python -m tests.events.event_table` prints it."""

from collections.abc import Iterator

from gradviz.events.event_layout import COLUMNS, LAYOUTS, Field, Layout
from gradviz.events.kinds import DETAILS

_HOLDS = {"text": "text", "rule": "rule", "flag": "flag", "time": "time", "back": "event"}


def markdown() -> str:
    """Each kind with its fields: the place of each field, the type of its value, and its description."""
    return "\n".join(line for layout in LAYOUTS.values() for line in _kind(layout))


def _kind(layout: Layout) -> Iterator[str]:
    says, _, more = (layout.event.__doc__ or "").partition("\n")
    detail = " *Left out of a pass that is not recorded in detail.*" if layout.kind in DETAILS else ""
    yield f"#### {layout.kind:d} {layout.kind.name}: `{layout.event.__name__}`"
    yield ""
    yield f"{says}{' ' * bool(more)}{' '.join(more.split())}{detail}"
    yield ""
    yield "| field | packed in | holds | says |"
    yield "|-|-|-|-|"
    places = _places(layout)
    for name, field in layout.fields.items():
        yield f"| `{name}` | {places[name]} | {_holds(field)} | {field.doc} |"
    yield ""


def _places(layout: Layout) -> dict[str, str]:
    """The place of each field of a kind in a packed event."""
    places = {field.name: f"flag {1 << bit}" for bit, field in enumerate(layout.flags)}
    places |= {field.name: f"`{name}`" for name, field in zip(COLUMNS, layout.columns, strict=False)}
    return places | {field.name: "links" for field in (*layout.more, *layout.lists)}


def _holds(field: Field) -> str:
    stored = field.stored
    if stored.how != "list":
        return stored.means or _HOLDS.get(stored.how, "number")
    return f"{stored.means}s" if len(stored.parts) == 1 else f"list of ({', '.join(stored.parts)})"


if __name__ == "__main__":
    print(markdown())
