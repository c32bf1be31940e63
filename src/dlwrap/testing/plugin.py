"""A pytest plugin with one fixture, `simulated_cuda`; importing it activates nothing and imports no CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlwrap.testing import SimulatedDriver


@pytest.fixture
def simulated_cuda() -> Iterator[SimulatedDriver]:
    """Give a test the simulated CUDA driver, fresh; after the test nothing may be pending or registered."""
    from dlwrap import testing  # noqa: PLC0415 - only tests that use the fixture pay for it

    try:
        testing.activate()
    except RuntimeError as obstacle:
        pytest.skip(str(obstacle))
    with testing.simulated_cuda() as driver:
        yield driver
