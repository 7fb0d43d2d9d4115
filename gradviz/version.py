"""The version of this package, as `pyproject.toml` has it, and the version of PyTorch that its engine follows."""

__version__ = "0.1.0"
TORCH_VERSION = "2.13.0"
