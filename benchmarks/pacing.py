"""Clocks of a client process: durations, steady rates, stamps in bodies, percentiles."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.results import Latency, Work

TICK_NS = 1_000_000
"""What is due within a millisecond leaves together: no client's timers are finer."""
STAMPS = struct.Struct("<QQ")


class Stopwatch:
    """Wall clock and CPU of this process, from its making to `stop`."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._start_ns = time.monotonic_ns()

    def stop(self, count: int) -> Work:
        """The work done since then."""
        end_ns = time.monotonic_ns()
        return Work(count, self._start_ns, end_ns, time.process_time() - self._cpu_s)


def pace(rate: int, count: int, pause: Callable[[float], None]) -> Iterator[list[int]]:
    """The due times (monotonic ns) of what is to be sent now, until `count` were due."""
    start_ns = time.monotonic_ns() + 5 * TICK_NS
    sent = 0
    while sent < count:
        now_ns = time.monotonic_ns()
        tick = (now_ns - start_ns) // TICK_NS
        until = min(count, (tick + 1) * rate // 1000)
        if until > sent:
            # Each is due at its tick, also those that a late tick has to catch up.
            yield [start_ns + number * 1000 // rate * TICK_NS for number in range(sent, until)]
            sent = until
        else:
            pause((start_ns + (tick + 1) * TICK_NS - now_ns) / 1e9)


def stamped(pad: bytes, due_ns: int) -> bytes:
    """A body that carries when it left and when it was due, as long as `pad`."""
    return STAMPS.pack(time.monotonic_ns(), due_ns) + pad[STAMPS.size :]


def stamps_of(body: bytes) -> tuple[int, int]:
    """When a body left and was due; (0, 0) in the marker that goes before all others."""
    left_ns, due_ns = STAMPS.unpack_from(body)
    return left_ns, due_ns


def latency_of(times_ns: Sequence[int], due_ns: Sequence[int] = ()) -> Latency:
    """Percentiles of times in nanoseconds, and of those from when each was due."""
    times, due = sorted(times_ns), sorted(due_ns)
    return Latency(
        p50_us=_at(times, 0.5),
        p99_us=_at(times, 0.99),
        p999_us=_at(times, 0.999),
        max_us=round(times[-1] / 1e3, 1),
        due_p50_us=_at(due, 0.5) if due else None,
        due_p99_us=_at(due, 0.99) if due else None,
    )


def _at(ordered_ns: Sequence[int], share: float) -> float:
    return round(ordered_ns[min(len(ordered_ns) - 1, int(share * len(ordered_ns)))] / 1e3, 1)
