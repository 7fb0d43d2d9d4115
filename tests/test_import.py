"""What `import gradviz` offers."""

from __future__ import annotations

import pytest

import gradviz
import gradviz.draw.picture
from gradviz import engine


def test_gradviz_draw_is_a_function_and_a_package() -> None:
    x = engine.tensor(2.0, requires_grad=True)
    assert isinstance(gradviz.draw(x * x), gradviz.draw.picture.Picture)


def test_gradviz_has_record_and_open() -> None:
    from gradviz.sources.record import record
    from gradviz.tracefile import open_trace

    assert (gradviz.record, gradviz.open) == (record, open_trace)
    assert gradviz.__version__ == engine.__version__


@pytest.mark.parametrize("name", ["tensor", "nn", "no_grad"])
def test_a_name_of_the_engine_is_found_there(name: str) -> None:
    with pytest.raises(AttributeError, match=r"import gradviz\.engine as torch"):
        getattr(gradviz, name)
