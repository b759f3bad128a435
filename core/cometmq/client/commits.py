"""Telling the broker, for a group, how far queues are finished."""

from __future__ import annotations

from cometmq.client.cursor import Place
from cometmq.client.dispatch import Dispatch
from cometmq.client.engine import Engine
from cometmq.client.flows import log
from cometmq.client.lane import Lane
from cometmq.client.offsets import ask_commit, commit_failures
from cometmq.errors import CometError, Fenced
from cometmq.protocol import CommitPart

PARTS_MAX = 1000
"""So many queues go into one request."""


class Commits:
    """Commits of all queues of a consumer. Everything needs the driver's lock."""

    def __init__(self, engine: Engine, group: str, dispatch: Dispatch, timeout_s: float) -> None:
        self._engine = engine
        self._group = group
        self._dispatch = dispatch
        self._timeout_s = timeout_s
        self._failed = False

    async def commit(self) -> None:
        """Store the lowest unfinished offset of each queue that moved.

        A queue that turns out not to be ours is no error. Raises Refused, Retryable,
        OutcomeUnknown; then the next commit covers what is missing.
        """
        moved = [
            lane
            for lane in self._dispatch.lanes.values()
            if lane.settle() != lane.committed and not (lane.lost or lane.halted)
        ]
        first: CometError | None = None
        for at in range(0, len(moved), PARTS_MAX):
            first = await self._store(moved[at : at + PARTS_MAX]) or first
        if first is not None:
            raise first

    async def commit_quietly(self) -> None:
        """The same; a failure is logged, the first of several in a row, since the next commit
        covers it."""
        try:
            await self.commit()
        except CometError as error:
            if self._engine.closed is None and not self._failed:
                log.warning("group %s: commit failed: %s", self._group, error)
            self._failed = True
        else:
            self._failed = False

    async def _store(self, lanes: list[Lane]) -> CometError | None:
        """One request; returns the first failure of a queue that is ours."""
        deadline_s = self._engine.now_s() + self._timeout_s
        sent, reply = await ask_commit(
            self._engine, self._group, lambda: [_part(lane) for lane in lanes], deadline_s
        )
        failed = commit_failures(reply, sent)
        first: CometError | None = None
        for at, (lane, part) in enumerate(zip(lanes, sent, strict=True)):
            error = failed.get(at)
            if error is None:
                lane.committed = Place(part.offset, part.epoch)
            elif isinstance(error, Fenced):
                # A token that was renewed meanwhile says nothing of the one that we have now.
                if lane.token is part.token:
                    self._dispatch.on_fenced(lane)
            else:
                first = first or error
        return first


def _part(lane: Lane) -> CommitPart:
    cursor, place = lane.cursor, lane.settle()
    return CommitPart(*lane.key, place.offset, place.epoch, cursor.incarnation, cursor.token)
