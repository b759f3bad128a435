"""Work that waits, without a loop or a thread of its own.

A *flow* is a coroutine that awaits only `Waitable`s. Whoever reads the socket resolves them, and
the flows that waited go on at once, in the same step. So the same flow runs under the sync face
and under the `aio` face: these differ only in how a caller waits for the `Task` around it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from cometmq.errors import Closed

T = TypeVar("T")
Flow = Coroutine["Waitable[Any]", None, T]

log = logging.getLogger("cometmq.client")


class Waitable(Generic[T]):
    """Something that ends once, with a value or an error."""

    __slots__ = ("_error", "_value", "_waiters", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[Callable[[], None]] | None = None

    def resolve(self, value: T) -> None:
        """End with a value; no effect when it has ended already."""
        if not self.done:
            self._value = value
            self._end()

    def fail(self, error: BaseException) -> None:
        """End with an error; no effect when it has ended already."""
        if not self.done:
            self._error = error
            self._end()

    def add_waiter(self, waiter: Callable[[], None]) -> None:
        """Call `waiter` when this ends, at once if it has."""
        if self.done:
            waiter()
        elif self._waiters is None:  # most have one at most: a list for each would only be garbage
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)

    def drop_waiter(self, waiter: Callable[[], None]) -> None:
        """Don't call this one, which was added: whoever waits in pieces would leave one of each."""
        if self._waiters is not None:
            self._waiters.remove(waiter)

    def result(self) -> T:
        """The value. Raises the error it ended with."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]

    @property
    def error(self) -> BaseException | None:
        """The error it ended with, if any."""
        return self._error

    def __await__(self) -> Generator[Waitable[T], None, T]:
        while not self.done:
            yield self
        return self.result()

    def _end(self) -> None:
        self.done = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            waiter()


class Task(Waitable[T]):
    """A flow on its way. It runs until it first has to wait before the constructor returns."""

    __slots__ = ("_flow",)

    def __init__(self, flow: Flow[T]) -> None:
        super().__init__()
        self._flow = flow
        self._step()

    def _step(self) -> None:
        if self.done:
            return
        try:
            awaited = self._flow.send(None)
        except StopIteration as stop:
            self.resolve(stop.value)
        except Exception as error:  # it belongs to whoever waits for this task
            self.fail(error)
        except BaseException:  # ctrl-C in the middle: the flow can't go on
            self.fail(Closed("the work was interrupted"))
            raise
        else:
            awaited.add_waiter(self._step)

    def cancel(self, reason: str) -> None:
        """Stop waiting: the flow ends, its `finally` blocks run, waiters get Closed."""
        if not self.done:
            self._flow.close()
            self.fail(Closed(reason))


def report_failure(task: Task[Any], what: str) -> None:
    """Log the error that a task in the background ends with, since nobody awaits it."""

    def ended() -> None:
        if task.error is not None:
            log.warning("%s: %s", what, task.error)

    task.add_waiter(ended)
