"""The two ends of a transport under test: a receiver in a thread of its own, and a caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from cometmq.environment import Buffer, Environment
from cometmq.interfaces import Channel, ChannelEvent, Limits, Listener, Peer, Transport
from cometmq.real_environment import RealEnvironment

T = TypeVar("T")
PATIENCE_S = 20.0
"""How long anything may take that must happen at all."""
_SLICE_S = 0.05


class ReceiverThread:
    """A `Receiver` on an event loop in a thread of its own. It echoes, unless `answer` is set."""

    def __init__(self, environment: Environment | None = None) -> None:
        self.environment = environment or RealEnvironment()
        self.messages: list[tuple[Peer, list[bytes]]] = []
        """All that came, copied."""
        self.drains: list[int] = []
        """How many messages each call brought."""
        self.gone: list[Peer] = []
        """Peers reported as lost."""
        self.answer: Callable[[Peer, Sequence[Buffer]], object] = _echo
        self._changed = threading.Condition()
        self._listeners: list[Listener] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for listener in self._listeners:
            self.run(listener.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.environment.threads.close()

    def received(self, drain: Sequence[tuple[Peer, Sequence[Buffer]]]) -> None:
        with self._changed:
            self.drains.append(len(drain))
            self.messages.extend(
                (peer, [bytes(frame) for frame in frames]) for peer, frames in drain
            )
            self._changed.notify_all()
        for peer, frames in drain:
            self.answer(peer, frames)

    def lost(self, peer: Peer) -> None:
        with self._changed:
            self.gone.append(peer)
            self._changed.notify_all()

    def listen(self, transport: Transport, address: str, limits: Limits | None = None) -> Listener:
        """Listen until the end of the context."""
        bound = transport.listen(address, self, limits or Limits(), self.environment)
        listener = self.run(bound)
        self._listeners.append(listener)
        return listener

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await something on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Call something on the loop."""

        async def called() -> T:
            return function()

        return self.run(called())

    def hold(self) -> Callable[[], None]:
        """Stop the loop in its tracks; returns what lets it go on."""
        held, released = threading.Event(), threading.Event()

        def stand_still() -> None:
            held.set()
            released.wait(PATIENCE_S)

        self._loop.call_soon_threadsafe(stand_still)
        assert held.wait(PATIENCE_S)
        return released.set

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until that is so; an AssertionError if it never is."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(condition()), PATIENCE_S), (
                f"in vain: {len(self.messages)} messages, {len(self.gone)} peers lost"
            )


class Caller:
    """A client that keeps all that its channel gave."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.messages: list[list[bytes]] = []
        self.events: list[ChannelEvent] = []
        self.sentences: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.channel.close()

    def take(self) -> None:
        """Receive what is there."""
        while messages := self.channel.receive():
            self.messages.extend([bytes(frame) for frame in frames] for frames in messages)
        for event, sentence in self.channel.events():
            self.events.append(event)
            self.sentences.append(sentence)

    def until(self, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Drive the channel until that is so; an AssertionError if nothing at all comes for
        `patience_s`: a busy machine may take its time as long as things move."""
        idle_slices = 0
        while idle_slices < patience_s / _SLICE_S:
            seen = len(self.messages), len(self.events)
            self.take()
            if condition():
                return
            moved = seen != (len(self.messages), len(self.events))
            idle_slices = 0 if moved else idle_slices + 1
            self.channel.wait(_SLICE_S)
        raise AssertionError(f"in vain: {len(self.messages)} messages, events {self.events}")

    def connected(self) -> Self:
        """Wait until the connection stands."""
        self.until(lambda: "connected" in self.events)
        return self

    def send(self, *frames: Buffer) -> None:
        """Send, with patience."""
        self.until(lambda: self.channel.send(frames))

    def ask(self, *frames: Buffer) -> list[bytes]:
        """Send, and wait for the next message."""
        before = len(self.messages)
        self.send(*frames)
        return self.collect(before + 1)[before]

    def collect(self, count: int) -> list[list[bytes]]:
        """Wait until there are that many messages, counted from the start."""
        self.until(lambda: len(self.messages) >= count)
        return self.messages


def _echo(peer: Peer, frames: Sequence[Buffer]) -> None:
    peer.send(frames)
