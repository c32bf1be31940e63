"""The checks, a function for each rule, in one file for each group."""

from __future__ import annotations

from conformance.checks import (
    copying,
    data,
    device,
    dtypes,
    exchange,
    exits,
    lifetime,
    ownership,
    protocol,
    readonly,
    shapes,
)
from conformance.checks._check import CHECKS, Check, why_not_asked

__all__ = ["CHECKS", "Check", "why_not_asked"]

_ALL = (protocol, exchange, device, dtypes, shapes, data, readonly, copying, ownership, lifetime, exits)
