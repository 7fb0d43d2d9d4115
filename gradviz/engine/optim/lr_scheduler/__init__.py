"""Learning rate schedules. See PyTorch's `torch.optim.lr_scheduler`."""

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.optim.lr_scheduler.base import LRScheduler
from gradviz.engine.optim.lr_scheduler.cycles import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from gradviz.engine.optim.lr_scheduler.factors import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from gradviz.engine.optim.lr_scheduler.plans import ChainedScheduler, ReduceLROnPlateau, SequentialLR

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

__getattr__ = says_what_is_missing(__name__, globals())
