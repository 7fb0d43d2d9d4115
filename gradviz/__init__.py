"""gradviz: a flight recorder and debugger for gradients."""

__version__ = "0.1.0"
