"""A client's inside without threads, sockets or time: a test moves it step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from cometmq.client.batching import Batch, Receipt
from cometmq.client.engine import Engine
from cometmq.client.flows import Flow, Task, Waitable
from cometmq.client.lone import Lone
from cometmq.interfaces import Limits
from cometmq.protocol import Operation
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.scripted_broker import ScriptedBroker

T = TypeVar("T")


class ClientRig:
    """An engine on virtual time before a scripted broker. It can own batches, too."""

    def __init__(self, *, queues: int = 4, limits: Limits | None = None) -> None:
        self.environment = VirtualEnvironment()
        self.broker = ScriptedBroker(queues=queues, limits=limits)
        self.engine = Engine("scripted://broker", self.environment, connect=self.broker.connect)

    def step(self, seconds: float = 0.0) -> None:
        """Let time pass, then do what is due."""
        self.environment.clock.advance(seconds)
        self.engine.pump()
        while self.engine.deferred:
            self.engine.deferred.popleft()()

    def pass_time(self, seconds: float) -> None:
        """Let time pass as a driver sees it: a step at each moment that the engine names."""
        clock = self.environment.clock
        end_s = clock.monotonic_s() + seconds
        self.step()
        while (next_s := self.engine.next_s()) < end_s:
            self.step(max(0.0, next_s - clock.monotonic_s()))
        self.step(end_s - clock.monotonic_s())

    def wake(self) -> None:
        """Let the broker answer the fetches that are parked there and for which it has something
        now."""
        for request in self.broker.asked(Operation.FETCH):
            if request.id in self.engine.connection.pending:
                answer = self.broker.default(request)
                if answer is not None:
                    request.answer(answer)
        self.step()

    def start(self, flow: Flow[T]) -> Task[T]:
        """Begin a flow and do what can be done now."""
        task = self.engine.spawn(flow)
        self.step()
        return task

    def run(self, flow: Flow[T]) -> T:
        """A flow that must end without time passing."""
        task = self.start(flow)
        assert task.done, "the flow still waits"
        return task.result()

    def receipt_of(self, lone: Lone) -> Receipt:
        """For tests that go both ways: a receipt asks a lone message what it asks a batch."""
        return Receipt(cast(Batch, lone), 0)

    def wait(self, waitable: Waitable[Any], timeout_s: float | None) -> object:
        """As the owner of batches: nobody blocks here."""
        raise AssertionError("a test must not block")

    def when_done(self, batch: Batch, callback: Callable[[], object]) -> None:
        """As the owner of batches."""
        batch.add_waiter(lambda: self.engine.deferred.append(callback))
