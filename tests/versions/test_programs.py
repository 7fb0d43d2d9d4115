"""The programs that depend on the version of PyTorch the most are recorded as `.ci/torch-versions` expects of each
version."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
pytest.importorskip("torch", reason="records programs of PyTorch: pip install torch==2.13.0")

from tests.versions.programs import QUICK, differences, programs  # noqa: E402


@pytest.mark.parametrize("name", QUICK)
def test_a_program_is_recorded_as_it_is(name):
    assert differences(name, programs()[name]) == []
