"""Where the memory is said to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance import reference
from conformance.cannot import CannotBeAskedError
from conformance.checks._check import check
from conformance.checks.protocol import assert_refused
from conformance.results import Side

if TYPE_CHECKING:
    from conformance.case import Case


@check("device.matches")
def check_matches(case: Case) -> None:
    subject = case.make(case.plain((19,)))
    said = tuple(map(int, subject.offered.__dlpack_device__()))
    found = case.look(subject).device
    assert found == said, f"__dlpack_device__ says {said}, the tensor {found}"


@check("device.arrives", every=True)
def check_arrives(case: Case) -> None:
    found = case.consumer.device(case.take(case.make(case.plain((20,)))))
    if found is None:
        raise CannotBeAskedError("it does not tell the device")
    expected = (reference.CUDA if case.side is Side.CUDA else reference.CPU, 0)
    assert found == expected, f"on device {found}, not {expected}"


@check("device.own")
def check_own(case: Case) -> None:
    subject = case.make()
    device = tuple(map(int, subject.offered.__dlpack_device__()))
    found = case.look(subject, dl_device=device, max_version=(1, 3)).device
    assert found == device, f"asked for {device}, got {found}"


@check("device.other")
def check_other(case: Case) -> None:
    for device in ((2, 99), (7, 0)):
        assert_refused(case, f"dl_device={device}", BufferError, dl_device=device)


@check("device.cuda", promise=True, cuda=True)
def check_cuda(case: Case) -> None:
    kinds = ["page-locked"]
    assert_on_cuda(case, kinds[0])
    if case.driver.use_pageable_memory():
        assert_on_cuda(case, "pageable")


def assert_on_cuda(case: Case, kind: str) -> None:
    subject = case.make()
    device = case.look(subject, max_version=(1, 3)).device
    subject.drop()
    case.settle()
    assert device == (reference.CUDA, 0), f"{kind} memory is said to be on device {device}"


@check("device.host-view", promise=True)
def check_host_view(case: Case) -> None:
    subject = case.make()
    seen = case.look(subject, dl_device=(1, 0), max_version=(1, 3))
    expected = subject.address(Side.CPU)
    assert seen.device == (1, 0), f"on device {seen.device}"
    assert seen.first == expected, f"at {seen.first:#x}, not the array's {expected:#x}"


@check("device.unnumbered", promise=True, cuda=True)
def check_unnumbered(case: Case) -> None:
    subject = case.make()
    device = case.look(subject, dl_device=(2, 255)).device
    assert device == (2, 0), f"on device {device}"
