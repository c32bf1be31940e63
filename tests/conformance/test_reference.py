"""The reference consumer in C sees what is there."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import reference
from conformance.consumers.reference import Reference, Taken
from conformance.memory import address, plain_bytes, watch
from conformance.results import Side

HOST = Reference(Side.CPU, driver=None)


def take(array):
    return Taken(array.__dlpack__(max_version=(1, 3)))


@st.composite
def views(draw):
    """Arrays of up to four dimensions: sliced, reversed, turned, some of them empty."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    for axis in range(array.ndim):
        step = draw(st.sampled_from([1, 2, -1, -3]))
        array = np.moveaxis(np.moveaxis(array, axis, 0)[::step], 0, axis)
    return array.transpose(draw(st.permutations(range(array.ndim))))


@given(views())
def test_it_reads_every_view_as_numpy_does(array):
    taken = take(array)
    assert HOST.shape(taken) == array.shape
    assert HOST.dtype(taken) == "int32"
    assert np.array_equal(HOST.read(taken), array)


@given(views())
def test_it_writes_every_view_as_numpy_does(array):
    values = np.arange(array.size, dtype=np.int32).reshape(array.shape) + 1000
    HOST.write(take(array), values)
    assert np.array_equal(array, values)


def test_it_reads_the_tail_of_a_strided_array():
    assert HOST.tail(take(np.arange(20, dtype=np.int16)[::2])).tolist() == [12, 14, 16, 18]


@pytest.mark.parametrize("request_", [{}, {"max_version": (1, 0)}])
def test_it_sees_every_field(request_):
    array = np.arange(12, dtype=np.complex64).reshape(3, 4)[:, ::2]
    capsule = array.__dlpack__(**request_)
    seen = reference.look(capsule)
    assert (seen.kind, seen.device, seen.dtype) == (len(request_), (1, 0), (5, 64, 1))
    assert (seen.shape, seen.strides, seen.first) == ((3, 2), (4, 2), address(array))
    assert seen.deleter
    assert seen.destructor


def test_looking_consumes_nothing_and_taking_does():
    capsule = np.arange(3.0).__dlpack__()
    reference.look(capsule)
    taken = Taken(capsule)
    with pytest.raises(AssertionError, match="not an unconsumed DLPack capsule"):
        reference.look(capsule)
    del taken


@pytest.mark.parametrize("other", [object(), None, np.arange(3)])
def test_it_takes_nothing_but_capsules(other):
    with pytest.raises(AssertionError, match="not an unconsumed DLPack capsule"):
        reference.look(other)


@pytest.mark.parametrize("delete", [reference.delete, reference.delete_on_foreign_thread])
def test_it_calls_the_deleter(delete):
    array = plain_bytes(16)
    alive = watch(array)
    seen = reference.take(array.__dlpack__())
    del array
    gc.collect()
    assert alive() is not None
    delete(seen)
    gc.collect()
    assert alive() is None


def test_it_notices_a_deleter_that_waits_for_the_interpreters_lock():
    seen = reference.take(np.arange(3.0).__dlpack__())  # NumPy's waits
    assert not reference.delete_within(seen, 0.05)


def test_an_error_survives_the_end_of_a_capsule_of_numpys():
    assert reference.drop_with_error([np.arange(3.0).__dlpack__()])


def test_memory_of_the_suite_is_zeros_and_ends():
    array = plain_bytes(100)
    assert not array.any()
    array[:] = 7
    assert array.flags.writeable
    assert address(array) % 4096 == 0
    alive = watch(array)
    assert isinstance(alive, weakref.ref)
    del array
    assert alive() is None
