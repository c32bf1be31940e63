"""TensorFlow: `tf.experimental.dlpack.from_dlpack`, which is given a legacy capsule."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance import reference
from conformance.consumers._consumer import Consumer
from conformance.dtypes import FLOAT8

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # its CPU side takes part

import tensorflow as tf

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.results import Side


class TensorFlow(Consumer):
    """Its tensors are immutable and compact."""

    compact = row_major = "TensorFlow takes compact row-major arrays only"
    immutable = "TensorFlow tensors are immutable"
    lacks = dict.fromkeys(FLOAT8, "TensorFlow's from_dlpack has no float8")

    def take(self, offered: object) -> Any:
        """Import it."""
        return tf.experimental.dlpack.from_dlpack(offered.__dlpack__())  # type: ignore[attr-defined]

    def address(self, array: Any) -> int:
        """As its export says."""
        return reference.look(tf.experimental.dlpack.to_dlpack(array)).first

    def dtype(self, array: Any) -> str:
        """Both name them alike."""
        return array.dtype.name

    def device(self, array: Any) -> tuple[int, int]:
        """As its export says."""
        return reference.look(tf.experimental.dlpack.to_dlpack(array)).device

    def readonly(self, array: Any) -> bool:  # noqa: ARG002
        """Nobody writes to a tensor."""
        return True

    def read(self, array: Any) -> np.ndarray:
        """Copy."""
        return np.array(array.numpy(), copy=True)


def make(side: Side, driver: Driver) -> TensorFlow:
    """Give the consumer."""
    return TensorFlow(side, driver)
