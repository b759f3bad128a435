"""Claims: which queues are ours, by token, at the broker that holds them.

Advice says what should be ours; only an accepted claim makes it so. A claim that the broker
calls fenced is presented once more: after a broker's start it may still stand, and then nothing of
the queue is handled twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from cometmq.client.backoff import Pace
from cometmq.client.commits import PARTS_MAX
from cometmq.client.cursor import Cursor, Place
from cometmq.client.dispatch import Dispatch, Key
from cometmq.client.engine import Engine
from cometmq.client.flows import Flow, log, report_failure
from cometmq.client.group_options import GroupOptions
from cometmq.client.lane import Lane
from cometmq.client.outcomes import failure
from cometmq.client.runs import Run
from cometmq.client.taking import Taker
from cometmq.errors import Closed, CometError, ProtocolError, Retryable
from cometmq.protocol import (
    Claim,
    ClaimPart,
    ClaimReply,
    ClaimResultPart,
    CommitReply,
    HeldQueue,
    Operation,
    PartStatus,
    Release,
    ReleasePart,
    Status,
    Token,
)

RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0
TRY_S = 10.0
"""How long one claim or release is tried before it is looked at again."""


class Claiming:
    """Everything needs the driver's lock."""

    def __init__(
        self, engine: Engine, options: GroupOptions, dispatch: Dispatch, taker: Taker
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """What we hold has changed."""
        self._engine = engine
        self._options = options
        self._dispatch = dispatch
        self._taker = taker
        self._member = engine.connection.client_id
        self._wanted: set[Key] = set()
        self._asked: set[Key] = set()
        """A claim for them is out."""
        self._doubtful: set[Key] = set()
        """A claim for them had no answer: the broker may believe that they are ours."""
        self._stuck: dict[Key, Lane] = {}
        """Their handler hangs: they are left to others until it returns."""
        self._refused: dict[Key, str] = {}
        """Why they could not be claimed, as it was told last."""
        self._fences = Pace()
        self._going: list[Lane] = []
        self._failed = ""
        """What the last claim as a whole ended with, if not well."""
        dispatch.on_fenced = self.fenced
        dispatch.on_progress = self._progress

    def held(self) -> list[HeldQueue]:
        """What we hold, for a heartbeat."""
        return [HeldQueue(*key) for key in self._dispatch.lanes]

    def advise(self, wanted: Collection[Key]) -> None:
        """These queues should be ours, and no others."""
        self._wanted = set(wanted)
        for key, lane in list(self._dispatch.lanes.items()):
            if key not in self._wanted:
                self.let_go(lane)
        self._soon()

    def let_go(self, lane: Lane) -> None:
        """Release a queue as soon as what was handed out of it is finished."""
        if not lane.draining:
            lane.drain()
            self._dispatch.silence(lane)
            self._engine.soon(self._dispatch.wake)
        self._progress(lane)

    def fenced(self, lane: Lane) -> None:
        """The broker does not know the token of this queue: ask whether it is still ours."""
        if not (lane.lost or lane.halted):
            lane.halted = True
            # Or two lies of a broker, that it is ours and that it is not, would go round and round.
            self._soon(self._fences.pause_s(self._engine.now_s()))

    def doubt(self) -> None:
        """Our session was over by our own clock: all our queues may be somebody else's now."""
        for lane in self._dispatch.lanes.values():
            self.fenced(lane)

    def rebind(self) -> None:
        """A new session: claims live on only if they are presented in it, within a session time.
        Until then their tokens are good, so nothing stops."""
        for lane in self._dispatch.lanes.values():
            lane.unbound = True
        self._soon()

    def force(self, lane: Lane) -> None:
        """Release a queue now, whatever is unfinished of it."""
        if not lane.lost:
            lane.lost = True
            self._dispatch.silence(lane)
            self._release(lane)

    def look_for_stuck(self) -> None:
        """Hand over the queues of handlers that are at one message for too long."""
        now_s = self._engine.now_s()
        for key, lane in list(self._dispatch.lanes.items()):
            for run in lane.runs:
                over_s = now_s - run.since_s
                if run.begun and not run.finished and over_s > self._options.max_poll_s:
                    if not lane.lost:
                        _warn_of(run, over_s)
                        if lane.in_hand:
                            self._stuck[key] = lane
                        self.force(lane)

    # --- inside -------------------------------------------------------------------------------

    def _progress(self, lane: Lane) -> None:
        """Something of a queue that is about to go was finished."""
        key = lane.key
        if self._stuck.get(key) is lane and not lane.in_hand:
            del self._stuck[key]
            self._soon()
        if lane.draining and lane.drained:
            self.force(lane)

    def _soon(self, pause_s: float = 0.0) -> None:
        """Look at what is to be claimed."""
        self._engine.soon(self._claim_missing, pause_s)

    def _claim_missing(self) -> None:
        lanes = self._dispatch.lanes
        keys = [
            lane.key for lane in lanes.values() if (lane.halted or lane.unbound) and not lane.lost
        ]
        if not self._dispatch.stopping:
            keys += [key for key in sorted(self._wanted | self._doubtful) if key not in lanes]
        keys = [key for key in keys if key not in self._asked and key not in self._stuck]
        self._asked.update(keys)
        for at in range(0, len(keys), PARTS_MAX):
            self._spawn(self._claim(keys[at : at + PARTS_MAX]))

    async def _claim(self, keys: Sequence[Key]) -> None:
        """Claim queues; those that can't be had now are claimed again later."""
        options = self._options
        parts = [self._claim_part(key) for key in keys]
        timeout_ms = int(options.session_timeout_s * 1000)
        header = Claim(options.group, self._member, parts, options.start_text, timeout_ms)
        pause_s = 0.0
        try:
            deadline_s = self._engine.now_s() + TRY_S
            reply = await self._engine.ask(Operation.CLAIM, header, ClaimReply, deadline_s)
            if len(reply.parts) != len(keys):
                raise ProtocolError(f"{len(reply.parts)} answers for {len(keys)} claims")
            for key, part in zip(keys, reply.parts, strict=True):
                pause_s = max(pause_s, self._answered(key, part))
        except Closed:
            return
        except CometError as error:
            text = str(error)
            level = logging.DEBUG if text == self._failed else logging.WARNING
            log.log(level, "group %s: queues can't be claimed yet: %s", options.group, text)
            self._failed = text
            self._doubtful.update(keys)
            pause_s = RETRY_MAX_S
        else:
            self._failed = ""
        finally:
            self._asked.difference_update(keys)
            self._release_all()
        self._soon(pause_s)

    def _claim_part(self, key: Key) -> ClaimPart:
        lane = self._dispatch.lanes.get(key)
        if lane is None:
            return ClaimPart(*key)
        return ClaimPart(*key, lane.cursor.incarnation, lane.token)

    def _answered(self, key: Key, part: ClaimResultPart) -> float:
        """Take the answer for one queue; returns after how many seconds to ask again, or 0."""
        self._doubtful.discard(key)
        lane = self._dispatch.lanes.get(key)
        if part.status == Status.OK and part.token is not None:
            self._refused.pop(key, None)
            if lane is not None and part.kept:
                _renew(lane, part.token)
                self._engine.soon(lane.topic.fetcher.hurry)
                self._engine.soon(self._dispatch.wake)
                return 0.0
            if lane is not None:
                self._dispatch.remove(lane)
            self._begin(key, part, part.token)
            return 0.0
        if lane is not None:
            self._dispatch.remove(lane)
            self.on_change()
        error = failure(part.status, part.detail, part.retry_after_ms)
        known = isinstance(error, Retryable) or self._refused.get(key) == str(error)
        self._refused[key] = str(error)
        log.log(
            logging.DEBUG if known else logging.WARNING,
            "group %s: queue %d of %s can't be claimed yet: %s",
            self._options.group,
            key[1],
            key[0],
            error,
        )
        if lane is None and not isinstance(error, Retryable):
            return RETRY_MAX_S
        return _pause_s(part.retry_after_ms)

    def _begin(self, key: Key, part: ClaimResultPart, token: Token) -> None:
        """A queue is ours from now on."""
        cursor = Cursor(*key, part.incarnation)
        cursor.token = token
        cursor.move(part.offset, part.epoch)
        topic = self._dispatch.topics[key[0]]
        lane = Lane(topic, cursor, self._taker, self._options.prefetch_messages)
        self._dispatch.add(lane)
        if key not in self._wanted or self._dispatch.stopping:
            self.let_go(lane)
        self.on_change()

    def _release(self, lane: Lane) -> None:
        """Give a queue back, together with all others of this step."""
        self._going.append(lane)
        self._engine.soon(self._release_all)

    def _release_all(self) -> None:
        # A claim that is out renews the token: a release with the old one would be fenced, and what
        # it commits be lost.
        lanes = [lane for lane in self._going if lane.key not in self._asked]
        self._going = [lane for lane in self._going if lane.key in self._asked]
        for at in range(0, len(lanes), PARTS_MAX):
            self._spawn(self._release_flow(lanes[at : at + PARTS_MAX]))

    async def _release_flow(self, lanes: list[Lane]) -> None:
        parts = [_release_part(lane) for lane in lanes]
        left = list(zip(lanes, parts, strict=True))
        told = False
        while left:
            header = Release(self._options.group, self._member, [part for _, part in left])
            try:
                deadline_s = self._engine.now_s() + TRY_S
                reply = await self._engine.ask(Operation.RELEASE, header, CommitReply, deadline_s)
                if len(reply.parts) != len(left):
                    raise Retryable(f"{len(reply.parts)} answers for {len(left)} releases", 1000)
            except Closed:
                return
            except Retryable as error:
                # Held until the broker knows better: somebody waits for it.
                told = self._tell_unreleased(error, told)
                await self._engine.sleep(max(RETRY_MIN_S, error.after_ms / 1000))
                continue
            except CometError as error:
                log.warning("group %s: queues are left unreleased: %s", self._options.group, error)
                reply = CommitReply([PartStatus(Status.OK)] * len(left))
            again = []
            pause_s = 0.0
            for (lane, part), answer in zip(left, reply.parts, strict=True):
                if answer.retry_after_ms or answer.status == Status.RETRY:
                    again.append((lane, part))
                    pause_s = max(pause_s, _pause_s(answer.retry_after_ms))
                else:
                    self._released(lane, answer)
            left = again
            if left:
                await self._engine.sleep(pause_s)

    def _tell_unreleased(self, error: CometError, told: bool) -> bool:
        """Once for each release."""
        if not told:
            log.warning("group %s: queues can't be released yet: %s", self._options.group, error)
        return True

    def _released(self, lane: Lane, answer: PartStatus) -> None:
        # Fenced: it was released before, or somebody else has it; both are what was wanted.
        if answer.status not in (Status.OK, Status.FENCED):
            error = failure(answer.status, answer.detail)
            log.warning("queue %d of %s: release: %s", lane.key[1], lane.key[0], error)
        self._dispatch.remove(lane)
        self.on_change()
        self._soon()

    def _spawn(self, flow: Flow[None]) -> None:
        report_failure(self._engine.spawn(flow), f"group {self._options.group}")


def _pause_s(retry_after_ms: int) -> float:
    """When to ask again for a queue, if the broker said when."""
    return min(RETRY_MAX_S, max(RETRY_MIN_S, retry_after_ms / 1000))


def _renew(lane: Lane, token: Token) -> None:
    """The claim still stands, under a new token: go on where we are."""
    cursor = lane.cursor
    cursor.token = token
    cursor.call = None
    cursor.error = None
    cursor.raised = False
    lane.halted = lane.unbound = False
    lane.committed = Place(0, 0)  # what was committed last may have to be committed again


def _release_part(lane: Lane) -> ReleasePart:
    place = lane.settle()
    cursor = lane.cursor
    token = lane.token or Token()
    if place == lane.committed:
        return ReleasePart(*lane.key, token, None, 0, cursor.incarnation)
    return ReleasePart(*lane.key, token, place.offset, place.epoch, cursor.incarnation)


def _warn_of(run: Run, over_s: float) -> None:
    message = run.messages[min(run.done, len(run.messages) - 1)]
    log.warning(
        "the handler is at offset %d of queue %d of %s for %.1f s: the queue is left to others; "
        "give it more time with max_poll=..., or do less for a message",
        message.offset,
        message.queue,
        message.topic,
        over_s,
    )
