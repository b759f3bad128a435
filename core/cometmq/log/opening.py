"""What a start does to the folder after it has understood it, and before anybody is served."""

from __future__ import annotations

from cometmq.errors import LogError
from cometmq.interfaces import Storage
from cometmq.log.recovery import Recovered
from cometmq.log.settings import Cut, LogSettings
from cometmq.log.state import State
from cometmq.log.writer import LogWriter

START_STEP_BYTES = 1 << 20
"""How much of the head checkpoint is written at once while nobody is served yet."""


def check_absent(state: State, settings: LogSettings) -> None:
    """Raises LogError if the log holds state of views that nobody brought and nobody gave up."""
    unknown = [f"batch-kind-{number}" for number in sorted(state.unknown_kinds)]
    unknown = [name for name in unknown if name not in settings.drop_state]
    if unknown:
        raise LogError(
            f"the log holds {', '.join(unknown)}, which this release does not know: start the"
            " broker of the newer release that wrote it, or give that state up for good"
            f" (--drop-state {unknown[0]})"
        )
    absent = [name for name in state.absent() if name not in settings.drop_state]
    if absent:
        names = ", ".join(absent)
        raise LogError(
            f"the log holds state of {names}, and no enabled plugin understands it: enable the"
            f" plugin again (--plugins {names}), or give its state up for good"
            f" (--drop-state {absent[0]})"
        )


def settle_tail(storage: Storage, found: Recovered) -> tuple[list[Cut], int]:
    """Cut a torn tail, and make sure that all before it is on disk.

    What lies behind the last proven synced position may be in the page cache only, after a kill
    or a failed sync, and what a start has seen it must not lose later: it is written again.
    Returns the cuts and how many bytes were written. Raises LogError.
    """
    cuts: list[Cut] = []
    segments = storage.segments()
    if found.torn:
        behind = segments[-1].base + segments[-1].size
        kept = storage.cut(found.end)
        if kept:
            cuts.append(Cut(found.end, behind - found.end, kept, found.torn))
    start = max(found.proven, segments[0].base) if segments else 0
    if found.log_id is None or start >= found.end:
        return cuts, 0
    storage.rewrite(start, found.end)
    return cuts, found.end - start


def register_kinds(state: State, writer: LogWriter, settings: LogSettings) -> None:
    """Record which views were given up and the numbers of new kinds. Raises NoSpace."""
    for name in settings.drop_state:
        if name in state.absent():
            writer.append_control("kind-name", state.kinds.drops(name))
    try:
        records = state.new_kinds()
    except ValueError as error:
        raise LogError(f"{error}; disable a plugin that brings its own batch kinds") from error
    if records:
        writer.append_control("kind-name", records)
