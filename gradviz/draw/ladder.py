"""A scene as SVG by the best layout that there is time for.

Graphviz with all its care for up to FULL things, told to hurry for up to FAST, and beyond, or where it does not
finish, rows of our own. A line in the picture says so."""

from __future__ import annotations

import os
from dataclasses import replace

from gradviz.draw.dot import dot_of
from gradviz.draw.layout import GaveUp, to_svg
from gradviz.draw.scene import Scene
from gradviz.draw.vector import svg_of

FULL, FAST = 2_000, 5_000  # things and a third of the links
PATIENCE = 20.0  # seconds for Graphviz


def laid_out(scene: Scene, patience: float = PATIENCE) -> str:
    """The scene as an SVG document. Raises layout.LayoutError where GRADVIZ_LAYOUT names what is not there."""
    if os.environ.get("GRADVIZ_LAYOUT") == "rows":
        return svg_of(scene)
    size = max(len(scene.things), len(scene.links) // 3)
    if size > FAST:
        return svg_of(
            _noted(scene, f"placed in rows: {len(scene.things):,} things are too many for Graphviz")
        )
    try:
        return to_svg(dot_of(scene, fast=size > FULL), timeout=patience)
    except GaveUp as error:
        return svg_of(_noted(scene, f"placed in rows: {str(error).partition(':')[0]}"))


def _noted(scene: Scene, note: str) -> Scene:
    return replace(scene, caption=[*scene.caption[:1], note, *scene.caption[1:]])
