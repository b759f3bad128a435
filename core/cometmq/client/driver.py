"""The sync face's way to wait: the caller's own thread drives the socket.

One lock guards the engine. Who holds it and finds nobody in the channel may use the channel; it
is let go only while waiting *in* the channel (`_driving`), when others may change the engine but
must wake the driver to have it sent. Handing a batch from thread to thread costs two wake-ups
under one interpreter, so callers send and wait for themselves.

A daemon thread takes what is left: answers while the caller does something else, partial batches
whose time has come, heartbeats. It looks away while a caller drives.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from cometmq.client.calls import Call
from cometmq.client.connection import NEVER
from cometmq.client.ctrl_c import CtrlC
from cometmq.client.engine import RECEIVED_AT_ONCE, Engine
from cometmq.client.flows import Flow, Waitable, log
from cometmq.client.waking import Waker, await_readable
from cometmq.errors import Closed
from cometmq.interfaces import Channel

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C", bound=Call[Any])

LOOK_AWAY_S = 0.001
LOOK_AWAY_MAX_S = 0.005
"""With something unanswered; who leaves that behind wakes a thread that would look later."""
LOOK_AWAY_ALONE_S = 0.02
"""With nothing but what a driving caller itself waits for: looking takes the interpreter away."""
TICK_S = 50e-6
"""Not worth a sleep, which takes a whole millisecond at least."""
QUICK_S = 0.005
"""So late may be what is due while a caller sends one message after the other: it looks only now
and then."""
LOOK_EVERY_S = 200e-6
"""A caller who sends looks for answers so often: an answer takes as long to come at least."""
SLICE_S = 1.0
"""No wait is longer in one piece; what is interrupted or missed is noticed by then."""

CLOSED = "this client is closed; make a new one"
FORKED = (
    "this client was made before a fork and its connection belongs to the parent process; "
    "make a new one in the child"
)


class Driver:
    """Runs flows of one engine for the threads of one process."""

    def __init__(self, engine: Engine, at_exit: Callable[[], None]) -> None:
        self.engine = engine
        self.lock = threading.Lock()
        self._cond = threading.Condition(self.lock)
        self._waker = Waker()
        self._ctrl_c = CtrlC(self._wake)
        self._pid = os.getpid()
        self._waiting = 0
        self._driving = False
        self._closing = False
        self._drove_at_s = 0.0
        self._quiet_until_s = 0.0
        """Nothing needs a look before, but for answers."""
        self._look_again_s = 0.0
        self._asleep_until_s = 0.0
        self._loop_thread: object | None = None
        self._watched: Channel | None = None
        self._at_exit = at_exit
        self.on_forked: Callable[[], None] = lambda: None
        """Called in a forked child, for a fast path that asks nobody."""
        atexit.register(at_exit)
        _drivers.add(self)

    # --- for faces ----------------------------------------------------------------------------

    def check(self) -> None:
        """Raises Closed when this client can't work: closed, or of another process."""
        if self._pid != os.getpid():
            raise Closed(FORKED)
        self.engine.check()

    def run(self, flow: Flow[T], *, stays: bool = False) -> T:
        """Run a flow to its end in this thread; flows end by their own deadlines. `stays`: as for
        `do`; then what the flow's end leaves to be sent goes with what the caller does next, or
        `LOOK_AWAY_ALONE_S` later."""
        try:
            self.check()
        except Closed:
            flow.close()
            raise
        with self._ctrl_c, self._cond:
            task = self.engine.spawn(flow)
            if self._driving:
                self._waker.wake()
            try:
                self._wait(task, None, look=task.done, stays=stays)
            finally:  # interrupted, or closed by another thread
                task.cancel(CLOSED if self._closing else "the wait was interrupted")
            if stays:
                self._drove_at_s = self.engine.now_s()
            self._leave(unsent=stays)
        self._run_deferred()
        return task.result()

    def run_lone(self, begin: Callable[[A, B], C | None], first: A, second: B) -> C | None:
        """Have `begin` send something, and drive until what it returns is done: as `run`, for work
        that needs no flow. None, with nothing changed, when `begin` says so, another thread drives
        or this client can't work any more.
        """
        if self._pid != os.getpid():
            return None
        engine = self.engine
        with self._ctrl_c, self.lock:
            begun = None if self._driving else begin(first, second)
            if begun is None:
                return None
            if begun.sent:
                self._drive(QUICK_S)
                if self._drove_at_s < self._quiet_until_s:
                    engine.take(self._drove_at_s)
            if not begun.done or self._waiting:
                engine.pump()
                self._quiet_until_s = self._drove_at_s + QUICK_S
                self._wait_on(begun, None)
                self._leave()
        self._run_deferred()
        if not begun.done:
            raise Closed(CLOSED)
        return begun

    def do(
        self,
        change: Callable[[], T],
        *,
        stays: bool = True,
        later: bool = False,
        quick: bool = False,
    ) -> T:
        """Change the engine under its lock and send what that gives, without waiting.

        `stays`: the caller will soon be back, so the loop thread may look away for a while.
        `later`: what is to be sent may go with what the caller does next, or `LOOK_AWAY_ALONE_S`
        later. `quick`: with nothing to send there is nothing to do now, but to look for answers
        now and then.
        """
        self.check()
        with self._ctrl_c, self._cond:
            result = change()
            if self._driving:
                self._waker.wake()
            else:
                if not later and (not quick or self._is_worth_a_look()):
                    self.engine.pump()
                if stays and not later:
                    self._drove_at_s = self.engine.now_s()
                self._leave(unsent=later)
        self._run_deferred()
        return result

    def _is_worth_a_look(self) -> bool:
        """Whether a caller who comes again and again has something to send or, for once, may find
        an answer; it is not he who has to."""
        connection, now_s = self.engine.connection, self.engine.now_s()
        if not connection.unsent and (not connection.pending or now_s < self._look_again_s):
            return False
        self._look_again_s = now_s + LOOK_EVERY_S
        return True

    def put_right(self, change: Callable[[], object]) -> None:
        """Change the engine under its lock and do nothing else, open or not: after an interrupt."""
        if self._pid == os.getpid():
            with self._ctrl_c, self.lock:
                change()

    def wait(self, waitable: Waitable[T], timeout_s: float | None) -> bool:
        """Drive until it is done or the time is over; returns whether it is done."""
        if waitable.done:
            return True
        self.check()
        with self._ctrl_c, self._cond:
            deadline_s = None if timeout_s is None else self.engine.now_s() + timeout_s
            self._wait(waitable, deadline_s)
            self._leave()
        self._run_deferred()
        return waitable.done

    def close(self) -> None:
        """Fail what waits, end the loop thread, close the channel."""
        if self._pid != os.getpid():
            return
        atexit.unregister(self._at_exit)
        with self._ctrl_c, self._cond:
            if self._closing:
                return
            self._closing = True
            while self._driving:
                self._waker.wake()
                self._wait_turn(SLICE_S)
            self.engine.close(Closed(CLOSED))
            self._cond.notify_all()
            if self._loop_thread is None:
                self._waker.close()
            else:
                self._waker.wake()
        self._run_deferred()

    def when_done(self, waitable: Waitable[T], callback: Callable[[], object]) -> None:
        """Have `callback` called without the lock, by the thread that sees it end, or here."""
        with self._ctrl_c, self.lock:
            waitable.add_waiter(lambda: self.engine.deferred.append(callback))
        self._run_deferred()

    def is_over(self) -> bool:
        """Whether it was closed, or belongs to another process."""
        return self.engine.closed is not None or self._pid != os.getpid()

    def forked(self) -> None:
        """We are the copy in a child process: never touch the parent's socket or its locks."""
        self.on_forked()

    # --- inside -------------------------------------------------------------------------------

    def _wait(
        self,
        waitable: Waitable[T],
        deadline_s: float | None,
        *,
        look: bool = True,
        stays: bool = False,
    ) -> None:
        """With the lock: drive, or let another thread drive, until done or over. Without `look`
        nothing is received before the first wait; with `stays` nothing is sent after the last."""
        if not self._driving:
            self.engine.pump(look)
        self._wait_on(waitable, deadline_s, stays)

    def _wait_on(
        self, waitable: Waitable[T], deadline_s: float | None, stays: bool = False
    ) -> None:
        """`_wait` when there is nothing to do before the first wait."""
        engine = self.engine
        while not waitable.done:
            now_s = engine.now_s()
            left_s = SLICE_S if deadline_s is None else min(SLICE_S, deadline_s - now_s)
            if left_s <= 0:
                return
            if self._closing or self._ctrl_c.is_noted():
                return
            if self._driving:
                self._wait_turn(left_s)
            else:
                self._drive(min(left_s, engine.next_s() - now_s))
            if not self._driving:
                took = engine.take(self._drove_at_s) if stays else 0
                if not (waitable.done and 0 < took < RECEIVED_AT_ONCE):
                    engine.pump(look=not took)

    def _wait_turn(self, timeout_s: float) -> None:
        """With the lock: until who drives got something or left."""
        self._waiting += 1
        try:
            self._cond.wait(timeout_s)
        finally:
            self._waiting -= 1

    def _drive(self, timeout_s: float) -> None:
        """Wait in the channel, without the lock, for something to come."""
        channel = self.engine.channel
        self._driving = True
        self.lock.release()
        try:
            if timeout_s <= 0:
                pass
            elif channel is None:
                await_readable([self._waker.read_fd], timeout_s)
            else:
                channel.wait(timeout_s, self._waker.read_fd)
        finally:
            self.lock.acquire()
            self._driving = False
            self._drove_at_s = self.engine.now_s()
            if self._waker.woken:
                self._waker.drain()
                self._quiet_until_s = 0.0
                if not self._asleep_until_s:
                    # It may have been the loop thread's, which sleeps on then: wake it again.
                    self._asleep_until_s = NEVER
            if self._waiting:
                self._cond.notify_all()

    def _leave(self, *, unsent: bool = False) -> None:
        """With the lock: see that the loop thread looks in time after what is left. `unsent`: a
        request may be left that nobody has tried to send."""
        if self._loop_thread is None:
            if self.engine.closed is None:
                self._loop_thread = self.engine.environment.threads.start("mq-client", self._loop)
            return
        if self._waiting:
            self._cond.notify_all()  # one of them drives now
        engine = self.engine
        late_s = self._asleep_until_s - self._drove_at_s
        if (
            engine.next_s() < self._asleep_until_s
            or (
                late_s > LOOK_AWAY_MAX_S
                and engine.connection.pending
                and self._watched is not engine.channel
            )
            or (unsent and late_s > LOOK_AWAY_ALONE_S and engine.connection.unsent)
        ):
            self._asleep_until_s = 0.0
            self._wake()

    def _wake(self) -> None:
        """Not once closed: the descriptor may be somebody else's by then."""
        if self.engine.closed is None:
            self._waker.wake()

    def _run_deferred(self) -> None:
        """Without the lock: run users' callbacks."""
        deferred = self.engine.deferred
        while deferred:
            try:
                callback = deferred.popleft()
            except IndexError:  # another thread took it
                break
            try:
                callback()
            except Exception:
                log.exception("a callback raised")

    # --- the loop thread ----------------------------------------------------------------------

    def _loop(self) -> None:
        away_s = LOOK_AWAY_S
        look = True
        while True:
            with self._cond:
                if self.engine.closed is not None:
                    break
                now_s = self.engine.now_s()
                if self._driving or now_s - self._drove_at_s < LOOK_AWAY_S:
                    self._watched = None
                    if self._waker.woken and not self._driving:  # else it is the driver's wake-up
                        self._waker.drain()
                        away_s = LOOK_AWAY_S
                    others = len(self.engine.connection.pending) > self._driving
                    timeout_s = away_s
                    away_s = min(2 * away_s, LOOK_AWAY_MAX_S if others else LOOK_AWAY_ALONE_S)
                else:
                    self._waker.drain()
                    self.engine.pump(look)
                    if self._waiting:
                        self._cond.notify_all()
                    self._watched = self.engine.channel
                    timeout_s = max(0.0, min(SLICE_S, self.engine.next_s() - now_s))
                    away_s = LOOK_AWAY_S
                self._asleep_until_s = now_s + timeout_s
                descriptors = [self._waker.read_fd]
                if self._watched is not None:
                    descriptors.append(self._watched.fileno())
            self._run_deferred()
            look = True
            if timeout_s > TICK_S:
                # Who was woken to send something has nothing to receive, most likely.
                look = await_readable(descriptors, timeout_s) != [self._waker.read_fd]
        self._run_deferred()
        self._waker.close()


_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def _after_fork() -> None:
    for driver in list(_drivers):
        driver.forked()


os.register_at_fork(after_in_child=_after_fork)
