"""Lays out a scene as SVG, with the best method that is fast enough.

Up to FULL things, Graphviz uses its full quality, and up to FAST its faster settings. For larger scenes, or if
Graphviz does not finish, things are placed in rows by `rows.py`; the caption mentions this."""

from __future__ import annotations

import os
from dataclasses import replace

from gradviz.pictures.dot import dot_of
from gradviz.pictures.layout import GaveUp, to_svg
from gradviz.pictures.scene import Scene
from gradviz.pictures.vector import svg_of

# limits for the number of things, or a third of the number of links if that is larger
FULL, FAST = 2_000, 5_000
PATIENCE = 20.0  # seconds for Graphviz


def laid_out(scene: Scene, patience: float = PATIENCE) -> str:
    """The scene as an SVG document. Raises layout.LayoutError if GRADVIZ_LAYOUT names an engine that is not
    available."""
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
