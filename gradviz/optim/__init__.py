"""Optimizers. See PyTorch's `torch.optim`."""

from gradviz.engine.missing import says_what_is_missing
from gradviz.optim import lr_scheduler
from gradviz.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from gradviz.optim.adaptive import Adadelta, Adagrad, RMSprop
from gradviz.optim.lbfgs import LBFGS
from gradviz.optim.optimizer import Optimizer
from gradviz.optim.sgd import SGD

__all__ = [
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "lr_scheduler",
]

__getattr__ = says_what_is_missing(__name__, globals())
