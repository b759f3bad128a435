"""`python -m benchmarks.asleep`: one `send` at a time where neither end looks for what comes next
but sleeps (`spin_us` 0), and as it is by default, each by a bare ROUTER/DEALER round trip.

The three take turns, so that all meet the same neighbours on a busy machine.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial

import click

from benchmarks.limits import BODY, bare_round_trip, times_us
from cometmq import Message, Producer
from cometmq.cli.fresh_broker import fresh_broker
from cometmq_transports.zmtp import connect

SPIN_US = "MQ_PLUGIN__ZMTP__SPIN_US"
BARE, ASLEEP, DEFAULT = "bare round trip", "send, never spinning", "send, as by default"


@contextlib.contextmanager
def _sending(asleep: bool) -> Iterator[Callable[[], object]]:
    """A broker in a process of its own; one call is a `send` at level memory."""
    dial = partial(connect, spin_us=0) if asleep else connect
    with contextlib.ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        if asleep:
            os.environ[SPIN_US] = "0"
        try:
            target = stack.enter_context(fresh_broker("flush-async", None, errors))
        finally:
            os.environ.pop(SPIN_US, None)
        producer = stack.enter_context(Producer(target.address, connect=dial))
        yield lambda: producer.send(Message("orders", BODY))


@click.command()
@click.option("--turns", type=click.IntRange(1), default=20, show_default=True)
@click.option("--count", type=click.IntRange(10), default=1000, show_default=True)
def main(turns: int, count: int) -> None:
    """Medians of COUNT sends of 1 KiB, TURNS times: lowest, median and highest."""
    with contextlib.ExitStack() as stack:
        sides = {
            BARE: stack.enter_context(bare_round_trip()),
            ASLEEP: stack.enter_context(_sending(asleep=True)),
            DEFAULT: stack.enter_context(_sending(asleep=False)),
        }
        found: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(turns + 1):
            for name, work in sides.items():
                took_us = times_us(work, count)
                if turn:
                    found[name].append(took_us[count // 2])
    for name, medians in found.items():
        ratios = [ours / bare for ours, bare in zip(medians, found[BARE], strict=True)]
        click.echo(
            f"{name:20} {min(medians):6.0f} {statistics.median(medians):6.0f} "
            f"{max(medians):6.0f} us, {statistics.median(ratios):.2f} times the bare one"
        )


if __name__ == "__main__":
    main()
