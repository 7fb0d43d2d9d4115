"""Makes docs/images/stepper.gif: the stepper on examples/quickstart.py, `python -m tests.step.stepper_gif`. Takes
Pillow, which the extra `pdf` brings."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from rich.console import Console

from gradviz.pictures.render import to_png
from gradviz.sources.script import Target, run
from gradviz.step.screen import Screen
from gradviz.step.state import Session
from gradviz.step.verbs import obey
from gradviz.tracefile import open_trace

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/images/stepper.gif"
SIZE = 100, 30  # columns and lines
SCALE = 0.75
LINES = ["goto 1", *["next"] * 9, "why", "next", "back", "next", *["next"] * 3, "last"]
SECONDS = {"goto 1": 2.5, "why": 4.0, "last": 4.0}
_USUAL = 1.2


def frames(folder: Path) -> Iterator[tuple[str, str]]:
    """Each command, and the screen behind it as SVG."""
    trace = folder / "quickstart.gradviz"
    run(Target(str(ROOT / "examples/quickstart.py"), False, []), trace, engine="numpy")
    with open_trace(trace) as opened:
        session = Session(opened, 0)
        for line in LINES:
            obey(session, line)
            yield line, drawn(session)


def drawn(session: Session) -> str:
    """A screen as SVG, in the fonts that gradviz brings."""
    width, height = SIZE
    console = Console(
        record=True, width=width, height=height, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Screen(session), end="")
    svg = console.export_svg(title="gradviz step quickstart.gradviz")
    return re.sub(r"Fira Code", "DejaVu Sans Mono", svg)


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        told = list(frames(Path(folder)))
    pictures = [Image.open(io.BytesIO(to_png(svg, SCALE))).convert("RGB") for _, svg in told]
    palette = pictures[-1].quantize(48)
    small = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    times = [int(1000 * SECONDS.get(line, _USUAL)) for line, _ in told]
    small[0].save(PICTURE, save_all=True, append_images=small[1:], duration=times, loop=0, optimize=True)


if __name__ == "__main__":
    main()
