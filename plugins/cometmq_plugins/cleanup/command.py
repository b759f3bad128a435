"""`mq cleanup …`: delete now what has to go, and see how the disk is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from cometmq.cli.output import broker_options, connect_option, json_option, print_json, print_table
from cometmq.client.admin import Admin
from cometmq_plugins.cleanup import reports
from cometmq_plugins.cleanup.messages import (
    CLEANUP_RUN,
    CLEANUP_STATUS,
    AskStatus,
    CleanupDone,
    CleanupStatus,
    Gone,
    RunCleanup,
)

RUN_TIMEOUT_S = 3600.0


@click.group()
def cleanup() -> None:
    """Delete old messages now, or see how full the disk is."""


@cleanup.command()
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@click.option(
    "--force", is_flag=True, help="The broker's wall clock is right, whatever steps it made."
)
@connect_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    default=RUN_TIMEOUT_S,
    show_default=True,
    help="How long to wait for the end; the broker goes on without us.",
)
@json_option
def run(dry_run: bool, force: bool, connect: str, timeout_s: float, as_json: bool) -> None:
    """Do now what is done every day: old segments go, and topics' own retention is applied."""
    with Admin(connect, timeout=timeout_s) as admin:
        done = admin.call(CLEANUP_RUN, RunCleanup(dry_run, force), CleanupDone)
    if as_json:
        print_json(done)
        return
    would = "would go" if dry_run else "deleted"
    total = sum(segment.size_bytes for segment in done.gone)
    click.echo(f"segments {would}: {len(done.gone)}, {total / 1e6:,.1f} MB")
    if done.gone:
        _show(done.gone)
    for raised in done.raised:
        click.echo(f"{raised.topic}, queue {raised.queue}: expired below {raised.min_offset}")
    if done.clock_in_doubt_ms:
        ahead = reports.in_words(done.clock_in_doubt_ms / 1000)
        click.echo(
            f"the broker's clock went {ahead} ahead in a step, so ages do not count by it yet; "
            "--force says that it is right"
        )


@cleanup.command()
@broker_options
def status(connect: str, timeout_s: float, as_json: bool) -> None:
    """Show usage, marks, forecast, and what was deleted since the start."""
    with Admin(connect, timeout=timeout_s) as admin:
        reply = admin.call(CLEANUP_STATUS, AskStatus(), CleanupStatus)
    if as_json:
        print_json(reply)
        return
    for label, text in reports.status_lines(reply).items():
        click.echo(f"{label:<9} {text}")
    if reply.last:
        _show(reply.last)


def _show(gone: Sequence[Gone]) -> None:
    print_table(
        ["position", "bytes", "newest message", "reason"],
        [[it.base, it.size_bytes, _time(it.newest_ms), it.reason] for it in gone],
    )


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return "-"
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
