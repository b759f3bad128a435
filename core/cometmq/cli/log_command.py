"""`mq log …`: look at the files of a log without a broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import click
import msgspec

from cometmq.batch import Batch
from cometmq.batch.layout import CODECS
from cometmq.cli.output import Progress, counted, json_option, print_json, print_table
from cometmq.environment import Files
from cometmq.log.inspection import LogReport, OnBatch, SegmentReport, inspect_log
from cometmq.log.verification import verify_log
from cometmq.real_environment import RealEnvironment


@click.group()
def log() -> None:
    """Look at the files of a log without a broker."""


@log.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.option("--batches", is_flag=True, help="List every intact batch, too.")
@json_option
def inspect(folder: str, batches: bool, as_json: bool) -> None:
    """Check the log in the data folder DIR; nothing is changed.

    Exit code 0 only when all is intact; prepared zeros and missing index files are. While a broker
    writes to the folder, the newest batches may look torn.
    """
    show = (_print_batch_json if as_json else _print_batch) if batches else None
    _tell(_look(inspect_log, folder, show), "every batch and index file by its CRCs", as_json)


@log.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@json_option
def verify(folder: str, as_json: bool) -> None:
    """Prove the log in the data folder DIR; nothing is changed.

    All that `inspect` checks, and: every index file row by row against its segment, every queue's
    offsets from batch to batch. Exit code 0 only when all is intact.
    """
    proven = "every batch by its CRCs, every index file row by row, every queue's offsets"
    _tell(_look(verify_log, folder, None), proven, as_json)


def _look(
    check: Callable[[Files, str, OnBatch], LogReport], folder: str, show: OnBatch | None
) -> LogReport:
    """Let a check go through the log, with a progress line; `show` gets every batch."""
    progress = Progress("checked")
    messages = size_bytes = 0

    def on_batch(batch: Batch, kind: str) -> None:
        nonlocal messages, size_bytes
        messages += batch.count if kind == "messages" else 0
        size_bytes += batch.length
        progress.update(messages, size_bytes)
        if show is not None:
            show(batch, kind)

    environment = RealEnvironment()
    try:
        return check(environment.files, os.path.abspath(folder), on_batch)
    finally:
        progress.close()
        environment.threads.close()


def _tell(report: LogReport, proven: str, as_json: bool) -> None:
    """`proven` says what was looked at."""
    if as_json:
        print_json({"intact": report.intact, **msgspec.structs.asdict(report)})
    else:
        _print_report(report, proven)
    if not report.intact:
        sys.exit(1)


def _print_report(report: LogReport, proven: str) -> None:
    click.echo(f"log {report.log_id or 'unknown'} in {report.folder}")
    click.echo(f"positions {report.start} to {report.end}")
    if report.segments:
        click.echo()
        print_table(
            [
                "segment",
                "bytes",
                "batches",
                "messages",
                "epochs",
                "stored from",
                "to",
                "checkpoint",
                "index",
                "prepared",
            ],
            [_row(segment) for segment in report.segments],
        )
        click.echo()
        print_table(["batches of kind", "number"], _kinds(report))
    click.echo()
    for note in report.notes:
        click.echo(f"note: {note}")
    for finding in report.findings:
        click.echo(f"{finding.kind}: {finding.text}")
    if report.intact:
        click.echo(f"all is intact: {proven}")
    else:
        click.echo(counted(len(report.findings), "finding"))


def _row(segment: SegmentReport) -> list[object]:
    return [
        segment.base,
        segment.size,
        sum(segment.batches.values()),
        segment.messages,
        ",".join(str(epoch) for epoch in segment.epochs) or "-",
        _time(segment.oldest_ms),
        _time(segment.newest_ms),
        segment.checkpoint,
        segment.index,
        segment.prepared,
    ]


def _kinds(report: LogReport) -> list[list[object]]:
    total: dict[str, int] = {}
    for segment in report.segments:
        for name, number in segment.batches.items():
            total[name] = total.get(name, 0) + number
    return [[name, number] for name, number in sorted(total.items())]


def _time(milliseconds: int) -> str:
    if not milliseconds:
        return "-"
    try:
        time = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        # A batch carries any number as its time.
        return f"{milliseconds} ms"
    return time.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def _print_batch(batch: Batch, kind: str) -> None:
    place = f"{batch.position:>12} {batch.length:>8} B  epoch {batch.epoch}"
    place += f"  synced {batch.synced_before}  {_time(batch.store_time)}  {kind}"
    if kind == "messages":
        place += (
            f"  {batch.topic} (incarnation {batch.incarnation}) queue {batch.queue}"
            f" offsets {batch.base_offset} to {batch.next_offset - 1}"
        )
        if batch.codec:
            place += f"  {CODECS[batch.codec]} of {batch.uncompressed_size} B"
    else:
        place += f"  {batch.count} record{'s' if batch.count > 1 else ''}"
    click.echo(place)


def _print_batch_json(batch: Batch, kind: str) -> None:
    print_json(
        {
            "position": batch.position,
            "length": batch.length,
            "kind": kind,
            "epoch": batch.epoch,
            "synced_before": batch.synced_before,
            "store_time": batch.store_time,
            "topic": batch.topic,
            "incarnation": batch.incarnation,
            "queue": batch.queue,
            "base_offset": batch.base_offset,
            "next_offset": batch.next_offset,
            "count": batch.count,
            "codec": CODECS[batch.codec],
            "uncompressed_size": batch.uncompressed_size,
        }
    )
