"""PyTorch's samples of arguments, without the stacks that it takes of them.

For each kind of device that is absent `torch.manual_seed` remembers a call to come, with the whole stack as text. To
name the test that runs, the samples of an operator take the whole stack twice. Under pytest both take longer than all
that is compared."""

from __future__ import annotations

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core


def take_no_stacks() -> None:
    """Let `torch.manual_seed` pass over the devices that this machine has not, and samples belong to no test."""
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None
    for module in (common_utils, core):
        module.extract_test_fn = lambda: None
