"""Optimizers. See PyTorch's `torch.optim`."""

from gradviz.optim import lr_scheduler
from gradviz.optim.adam import Adam, AdamW, NAdam
from gradviz.optim.adaptive import Adadelta, Adagrad, RMSprop
from gradviz.optim.optimizer import Optimizer
from gradviz.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "NAdam",
    "Optimizer",
    "RMSprop",
    "lr_scheduler",
]
