"""The tests, room by room, and the programs that they share."""

import os

# Before NumPy and PyTorch look: workers share the processors, on which pools of threads would wait for each other.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
