"""Three plugins that implement every hook of the message path and do nothing there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cometmq.batch import Batch
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import ParkedFetch, SessionInfo


class Idle:
    """Is asked and has no opinion."""

    def __init__(self, name: str) -> None:
        self.name = name

    @hookimpl
    def authorize(self, session: SessionInfo, operation: str, resource: str) -> None:
        """Everybody may do everything."""

    @hookimpl
    def admit(self, session: SessionInfo, operation: str, size_bytes: int) -> None:
        """At any time."""

    @hookimpl
    def before_append(self, session: SessionInfo, batch: Batch) -> None:
        """As it is."""

    @hookimpl
    def readable_advanced(self, start: int, end: int, queues: Sequence[tuple[int, int]]) -> None:
        """Nobody waits."""

    @hookimpl
    def fetch_wait(self, fetch: ParkedFetch) -> None:
        """That is for others."""


THREE: Mapping[str, object] = {name: Idle(name) for name in ("idle-1", "idle-2", "idle-3")}
