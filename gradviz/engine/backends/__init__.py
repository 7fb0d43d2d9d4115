"""What programs ask of `torch.backends`. No backend is available; setting their options has no effect."""

from gradviz.engine.basics.missing import says_what_is_missing


class _Backend:
    """A backend that is not available."""

    enabled = deterministic = benchmark = allow_tf32 = False

    @staticmethod
    def is_available() -> bool:
        """False."""
        return False

    is_built = is_available


class cudnn(_Backend):
    """NVIDIA's backend."""


class mps(_Backend):
    """Apple's backend."""


class mkldnn(_Backend):
    """Intel's backend."""


__getattr__ = says_what_is_missing(__name__, globals())
