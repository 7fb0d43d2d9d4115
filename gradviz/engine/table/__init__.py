"""Every operation of the engine.

`derivatives` is the table: one row an operation, with its derivative. `kernels` are the NumPy functions that rows
compute with. `ops` are the functions that programs call.
"""
