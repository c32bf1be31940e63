"""On PYTHONPATH for the GPU tests: numba-cuda up to 0.30 asks NumPy for a name that 2.5 has no more, in every kernel."""

import numpy as np

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
