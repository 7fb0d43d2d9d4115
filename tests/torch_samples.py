"""PyTorch's samples of arguments, without the stacks that it takes of them. The database is imported when it is first
asked for: that takes 4 s, in each process that collects tests.

For each kind of device that is absent `torch.manual_seed` remembers a call to come, with the whole stack as text. To
name the test that runs, the samples of an operator take the whole stack twice. Under pytest both take longer than all
that is compared."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def operators() -> list[Any]:
    """PyTorch's database of operators."""
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def take_no_stacks() -> None:
    """Let `torch.manual_seed` pass over the devices that this machine has not, and samples belong to no test."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None
    for module in (common_utils, core):
        module.extract_test_fn = lambda: None
