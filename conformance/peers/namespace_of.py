"""A module like NumPy whose functions give arrays of a class of ours."""

from __future__ import annotations

import functools
import types
from typing import Any

import numpy as np

_KEPT = {"from_dlpack"}  # what it gives is the consumer's


class Namespace(types.ModuleType):
    """NumPy, where every function that would give an `ndarray` gives an instance of another class.

    Parameters
    ----------
    name : str
        What the module is called.
    array_class : type
        A subclass of `numpy.ndarray`; it is also the module's ``ndarray``.
    """

    def __init__(self, name: str, array_class: type[np.ndarray]) -> None:
        super().__init__(name)
        self.__path__ = np.__path__
        self._array_class = array_class
        self.ndarray = array_class

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if name in _KEPT or isinstance(found, type) or not isinstance(found, _FUNCTIONS):
            return found
        return _giving(self._array_class, found)


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type(np.concatenate))  # the last: the dispatcher's own


@functools.cache
def _giving(array_class: type[np.ndarray], function: Any) -> Any:
    @functools.wraps(function)
    def give(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if type(result) is not np.ndarray:
            return result
        theirs = result.view(array_class)
        return theirs.copy(order="K") if result.flags.owndata else theirs  # it must own what its base would own

    return give
