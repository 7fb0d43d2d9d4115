"""Optimizers. See PyTorch's `torch.optim`."""

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.optim import lr_scheduler
from gradviz.engine.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from gradviz.engine.optim.adaptive import Adadelta, Adagrad, RMSprop
from gradviz.engine.optim.lbfgs import LBFGS
from gradviz.engine.optim.optimizer import Optimizer
from gradviz.engine.optim.sgd import SGD

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
