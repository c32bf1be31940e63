"""The exceptions and the one warning; imports nothing of dlwrap."""

from __future__ import annotations


class DLWrapError(Exception):
    """Base of the errors that only dlwrap raises.

    Bad arguments raise `ValueError` or `TypeError`, and arrays or requests that cannot be exported raise
    `BufferError`, as the array API standard asks.
    """


class CudaError(DLWrapError, RuntimeError):
    """A CUDA driver call failed, or there is no driver to call.

    Attributes
    ----------
    code : int
        The driver's ``CUresult``; -1 where the driver could not be loaded.
    name : str
        The name of that result, such as ``"CUDA_ERROR_OUT_OF_MEMORY"``.
    explanation : str
        What it means here, and the cure where there is one.
    call : str
        The driver function that returned it.
    """

    def __init__(self, code: int, name: str, explanation: str, call: str) -> None:
        self.code = code
        self.name = name
        self.call = call
        self.explanation = explanation
        super().__init__(f"{name} ({code}) from {call}: {explanation}")

    def __reduce__(self) -> tuple[type[CudaError], tuple[int, str, str, str]]:
        return type(self), (self.code, self.name, self.explanation, self.call)


class DLWrapWarning(RuntimeWarning):
    """Something was kept (leaked) because it could not be proved that the GPU is done with it."""


for _public in (DLWrapError, CudaError, DLWrapWarning):
    _public.__module__ = "dlwrap"
