"""Makes docs/images/page.png: the page of examples/two_layers.py in the middle of its last pass, `python -m
tests.page.page_png`. Takes chromium."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from gradviz.events.kinds import Kind
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/images/page.png"
CHROMIUM = [
    *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=4000"),
    *("--disable-background-networking", "--disable-quic", "--window-size=1280,860"),
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace, page = Path(folder, "two_layers.gradviz"), Path(folder, "page.html")
        run(Target(str(ROOT / "examples/two_layers.py"), False, []), trace, engine="numpy")
        with open_trace(trace) as opened:
            last = opened.pass_numbers[-1]
            accumulated = opened.table(Kind.ACCUMULATED)
            event = int(accumulated.events[accumulated["in_pass"] == last][1])
        draw = ["python", "-m", "gradviz", "graph", str(trace), "--pass", str(last), "-o", str(page)]
        subprocess.run(draw, check=True)
        address = f"file://{page}#pass={last}&event={event + 1}&theme=light"
        subprocess.run([*CHROMIUM, f"--screenshot={PICTURE}", address], check=True, capture_output=True)


if __name__ == "__main__":
    main()
