"""Messages one by one, for who iterates over a consumer instead of giving it handlers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cometmq.client.dispatch import Dispatch
from cometmq.client.engine import Engine
from cometmq.client.flows import Waitable
from cometmq.client.group_options import Lease
from cometmq.client.listeners import Listener
from cometmq.client.runs import Run
from cometmq.message import ReceivedMessage


class HeldMessage(ReceivedMessage, array_like=True, gc=True):
    """A message that its group regards as unfinished until it is acknowledged."""

    run: Run | None = None
    index: int = 0

    def ack(self) -> None:
        """It is finished: the group never sees it again once all before it are finished too and
        the next commit was stored. May be called from any thread, in any order; a second time it
        has no effect."""
        run = self.run
        assert run is not None and run.acked is not None
        run.acked[self.index] = 1
        if run.lane.draining and run.on_ack is not None:
            run.on_ack(run)


class Handout:
    """Hands out messages of all listeners without a handler, to one thread or task."""

    def __init__(
        self, engine: Engine, dispatch: Dispatch, lease: Lease, on_ack: Callable[[Run], None]
    ) -> None:
        self.listeners: list[Listener] = []
        self.news: Waitable[None] = Waitable()
        """Ends when there may be something for `turn`."""
        self._now_s = engine.now_s
        self._dispatch = dispatch
        self._lease = lease
        self._on_ack = on_ack
        self._run: Run | None = None
        self._left: deque[ReceivedMessage] = deque()
        self._index = 0

    def next(self) -> HeldMessage | None:
        """The next message of the run at hand; needs no lock. None: `turn` first."""
        run = self._run
        if run is None or run.lane.lost or run.lane.halted:
            return None
        now_s = self._now_s()
        if now_s >= self._lease.until_s:
            return None
        try:
            message = self._left.popleft()
        except IndexError:
            return None
        run.since_s = now_s
        index = self._index
        self._index = index + 1
        return HeldMessage(
            message.born_time,
            message.body,
            message.tag,
            message.keys,
            message.properties,
            message.offset,
            message.origin,
            run,
            index,
        )

    def turn(self) -> bool:
        """With the lock: take the next run; returns whether there is one."""
        run, self._run = self._run, None
        if run is not None:
            run.lane.take_back(run)
            run.left = None
            run.lane.settle()
            if run.lane.lost:
                self._dispatch.on_progress(run.lane)
        for _ in range(len(self.listeners)):
            listener = self.listeners.pop(0)
            self.listeners.append(listener)  # the next turn begins with another one
            run = self._dispatch.take(listener)
            if run is not None:
                self._begin(run)
                return True
        return False

    def _begin(self, run: Run) -> None:
        run.acked = bytearray(len(run.messages))
        run.on_ack = self._on_ack
        run.left = self._left = deque(run.messages)
        self._index = 0
        self._run = run
