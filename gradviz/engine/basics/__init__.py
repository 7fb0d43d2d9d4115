"""What the engine is built on that knows nothing of tensors: dtypes, devices, printing, error messages."""
