"""What a program asks of `torch.backends`: none of them is there; settings of theirs are kept and change nothing."""

from gradviz.engine.basics.missing import says_what_is_missing


class _Backend:
    """A backend that is not there."""

    enabled = deterministic = benchmark = allow_tf32 = False

    @staticmethod
    def is_available() -> bool:
        """False."""
        return False

    is_built = is_available


class cudnn(_Backend):
    """NVIDIA's."""


class mps(_Backend):
    """Apple's."""


class mkldnn(_Backend):
    """Intel's."""


__getattr__ = says_what_is_missing(__name__, globals())
