"""Backward passes that stop at the first NaN. See PyTorch's `torch.autograd.anomaly_mode`."""

from __future__ import annotations

from gradviz.engine.core.state import state

__all__ = ["detect_anomaly", "set_detect_anomaly"]


class set_detect_anomaly:
    """Switch anomaly mode on or off. As a context manager, switch it back at the end.

    In anomaly mode a backward pass raises RuntimeError at a node that returns NaN, unless `check_nan` is False."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.previous = state.anomaly, state.check_nan
        state.anomaly, state.check_nan = bool(mode), bool(check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        state.anomaly, state.check_nan = self.previous


class detect_anomaly:
    """Anomaly mode inside the block."""

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = check_nan

    def __enter__(self) -> None:
        self.setting = set_detect_anomaly(True, self.check_nan)

    def __exit__(self, *_: object) -> None:
        self.setting.__exit__()
