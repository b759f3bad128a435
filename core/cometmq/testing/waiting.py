"""Waiting for what other threads and processes do, where nothing tells of it."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.005


def until(condition: Callable[[], object], timeout_s: float = 40.0) -> bool:
    """Look again and again until `condition` holds, or the time is over; whether it holds."""
    end_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(LOOK_S)
    return bool(condition())
