"""Seeding PyTorch as often as there are samples.

For each kind of device that is absent `torch.manual_seed` remembers a call to come, with the whole stack as text. Under
pytest that takes longer than all that is compared."""

from __future__ import annotations

import torch


def seed_no_absent_devices() -> None:
    """Let `torch.manual_seed` pass over the devices that this machine has not."""
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None
