"""Random numbers: PyTorch's CPU generator, and its state as bytes."""
