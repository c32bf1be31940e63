"""On PYTHONPATH for the GPU tests: for each kernel numba-cuda 0.30 asks NumPy for a name that 2.5 has no more."""

import numpy as np

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
