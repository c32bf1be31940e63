"""The exceptions and the one warning."""

from __future__ import annotations

import copy
import pickle

import pytest

import dlwrap


@pytest.fixture
def error():
    return dlwrap.CudaError(2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory", "cuMemHostRegister")


def test_a_cuda_error_carries_code_name_and_call(error):
    assert (error.code, error.name, error.call) == (2, "CUDA_ERROR_OUT_OF_MEMORY", "cuMemHostRegister")


def test_a_cuda_error_reads_name_code_call_and_explanation(error):
    assert str(error) == "CUDA_ERROR_OUT_OF_MEMORY (2) from cuMemHostRegister: out of memory"


@pytest.mark.parametrize("duplicate", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_a_cuda_error_survives_being_duplicated(error, duplicate):
    again = duplicate(error)
    assert type(again) is dlwrap.CudaError
    assert (again.code, again.name, again.call, str(again)) == (error.code, error.name, error.call, str(error))


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (dlwrap.CudaError, dlwrap.DLWrapError),
        (dlwrap.CudaError, RuntimeError),
        (dlwrap.DLWrapError, Exception),
        (dlwrap.DLWrapWarning, RuntimeWarning),
    ],
)
def test_an_error_can_be_caught_by_its_base(kind, base):
    assert issubclass(kind, base)


@pytest.mark.parametrize("kind", [dlwrap.DLWrapError, dlwrap.CudaError, dlwrap.DLWrapWarning])
def test_tracebacks_show_the_public_name(kind):
    assert kind.__module__ == "dlwrap"
