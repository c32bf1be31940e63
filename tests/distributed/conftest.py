"""What both kinds of workers are asked to do; sent to them by value, because they cannot import the tests."""

from __future__ import annotations

import contextlib
import sys

import pytest


@pytest.fixture(scope="module", autouse=True)
def _sent_by_value(request):
    """Have a test module, which workers cannot import, pickled by value."""
    cloudpickle = pytest.importorskip("cloudpickle", reason="comes with Dask and Ray")
    module = sys.modules[request.module.__name__]
    pickles = [cloudpickle]
    with contextlib.suppress(ImportError):
        from ray import cloudpickle as rays_own

        pickles.append(rays_own)
    for pickle in pickles:
        pickle.register_pickle_by_value(module)
    yield
    for pickle in pickles:
        pickle.unregister_pickle_by_value(module)
