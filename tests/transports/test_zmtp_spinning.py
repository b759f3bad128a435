"""Looking instead of sleeping: only where it pays, and never for long."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pytest

from cometmq import native
from cometmq.environment import Buffer
from cometmq.interfaces import Limits, Peer
from cometmq.native import Received
from cometmq.real_environment import RealEnvironment
from cometmq.testing.clock import VirtualClock
from cometmq.testing.transport_ends import PATIENCE_S, ReceiverThread
from cometmq.testing.transport_ends import Caller as Client
from cometmq.testing.zmtp import GREETING, message, ready
from cometmq_transports.zmtp import ZmtpOptions, ZmtpTransport, channel, connect
from cometmq_transports.zmtp.channel import ZmtpChannel
from cometmq_transports.zmtp.connection import Connection
from cometmq_transports.zmtp.listener import ZmtpListener
from cometmq_transports.zmtp.spinning import (
    LOOKS,
    LOOKS_MAX,
    LOSSES_MAX,
    LOST_S,
    MISS,
    QUICK_S,
    REST_MAX_S,
    REST_MIN_S,
    SMALL_BYTES,
    TRIAL,
    VALID_S,
    Spin,
)
from cometmq_transports.zmtp.wire import BROKER

T = TypeVar("T")
LONGEST_S = 200e-6
LOOK_S = 1e-6
SLEPT_S, AWAKE_S = 230e-6, 170e-6
"""From one request to the next, where looking pays."""


class Requests:
    """One after the other, told to a `Spin`, on a clock of their own."""

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self.spin = Spin(longest_s)
        self.now_s = 1000.0
        self.awake: list[bool] = []
        """For each request, whether the next one was looked for."""

    def request(self, slept_s: float = SLEPT_S, awake_s: float = AWAKE_S) -> bool:
        """One more, after the time that it takes; whether the next one is looked for."""
        self.now_s += awake_s if self.spin.wanted else slept_s
        self.awake.append(self.spin.passed(self.now_s))
        return self.awake[-1]

    def requests(self, count: int, slept_s: float = SLEPT_S, awake_s: float = AWAKE_S) -> int:
        """So many more; for how many of the next ones it was looked."""
        return sum(self.request(slept_s, awake_s) for _ in range(count))

    def for_s(self, seconds: float, slept_s: float = SLEPT_S, awake_s: float = AWAKE_S) -> float:
        """As many as that time has; the share of those that were looked for."""
        until_s, before = self.now_s + seconds, len(self.awake)
        while self.now_s < until_s:
            self.request(slept_s, awake_s)
        return sum(self.awake[before:]) / (len(self.awake) - before)

    def clock(self, step_s: float = LOOK_S) -> Callable[[], float]:
        """A clock that goes on by so much each time it is looked at."""

        def now_s() -> float:
            self.now_s += step_s
            return self.now_s

        return now_s


@pytest.fixture
def spinning() -> Requests:
    """One for whom it pays, as is known since just now."""
    caller = Requests()
    caller.requests(2 * TRIAL + 4)
    assert caller.spin.wanted
    return caller


def never() -> bool:
    return False


def test_it_looks_once_it_is_known_to_pay() -> None:
    caller = Requests()
    assert caller.requests(TRIAL + 1) == 0, "the first are awaited asleep"
    assert caller.requests(TRIAL) == TRIAL, "then as many awake"
    assert caller.requests(1000) == 1000
    assert caller.for_s(20 * VALID_S) > 0.98, "what asking again costs"


@pytest.mark.parametrize(
    ("slept_s", "awake_s"),
    [
        pytest.param(250e-6, 250e-6, id="requests come by a clock"),
        pytest.param(230e-6, 225e-6, id="hardly quicker"),
        pytest.param(230e-6, 600e-6, id="the client has to wait for the core"),
    ],
)
def test_where_it_does_not_pay_it_is_tried_ever_more_rarely(slept_s: float, awake_s: float) -> None:
    caller = Requests()
    caller.for_s(2 * REST_MAX_S, slept_s, awake_s)
    before = len(caller.awake)
    caller.for_s(3 * REST_MAX_S, slept_s, awake_s)
    assert TRIAL <= sum(caller.awake[before:]) <= 3 * (TRIAL + 1)


@pytest.mark.parametrize("between_s", [1.5 * QUICK_S, 0.1, 10.0])
def test_slow_requests_are_never_waited_for(between_s: float) -> None:
    caller = Requests()
    assert caller.requests(1000, between_s, between_s) == 0


def test_a_few_quick_requests_are_no_succession() -> None:
    caller = Requests()
    for _ in range(100):
        assert caller.requests(TRIAL) == 0
        assert not caller.request(1.0)


def test_after_a_pause_the_second_request_is_waited_for(spinning: Requests) -> None:
    """What is known holds for a while, but a single request tells of no other."""
    assert not spinning.request(awake_s=0.01)
    assert spinning.request()
    assert not spinning.request(awake_s=2 * VALID_S)
    assert spinning.requests(TRIAL) == 0


def test_when_it_no_longer_pays_that_is_seen_within_a_second(spinning: Requests) -> None:
    """In spite of what it once brought: the cores are wanted by others now."""
    spinning.for_s(VALID_S + REST_MIN_S / 2, 230e-6, 400e-6)
    assert spinning.for_s(REST_MIN_S / 4, 230e-6, 400e-6) == 0


def test_a_trial_that_takes_long_ends_early() -> None:
    """Where both ends want one core each awake wait may take a hundred times as long."""
    caller = Requests()
    assert caller.requests(TRIAL + 1) == 0
    assert caller.requests(TRIAL, awake_s=0.9 * QUICK_S) < TRIAL / 3


def test_with_no_time_to_spend_it_never_looks() -> None:
    assert Requests(longest_s=0).requests(1000) == 0


def test_what_is_found_ends_the_looking(spinning: Requests) -> None:
    looks: Iterator[str] = iter(["", "", "something", ""])
    assert spinning.spin.look(lambda: next(looks), spinning.clock()) == "something"
    assert not spinning.spin.wanted
    assert next(looks) == ""


def test_it_gives_others_a_turn_and_ends_in_time(spinning: Requests) -> None:
    begun_s, turns = spinning.now_s, 0
    now_s = spinning.clock()
    while spinning.spin.wanted:
        before_s = spinning.now_s
        assert spinning.spin.look(never, now_s) is None
        assert spinning.now_s - before_s <= (LOOKS + 1) * LOOK_S * 1.01
        turns += 1
    assert turns >= 3
    assert LONGEST_S <= spinning.now_s - begun_s <= LONGEST_S + 5 * LOOK_S


def test_it_ends_on_a_clock_that_stands_still(spinning: Requests) -> None:
    looks = 0

    def count() -> bool:
        nonlocal looks
        looks += 1
        return False

    while spinning.spin.wanted:
        spinning.spin.look(count, lambda: spinning.now_s)
    assert looks == LOOKS_MAX


def test_what_always_comes_too_late_is_no_longer_looked_for(spinning: Requests) -> None:
    """As an answer that waits for a disk: noise may make it look as if it paid."""
    for _ in range(TRIAL // MISS):
        while spinning.spin.wanted:
            spinning.spin.look(never, spinning.clock())
        assert spinning.request()
    while spinning.spin.wanted:
        spinning.spin.look(never, spinning.clock())
    assert spinning.for_s(REST_MIN_S / 2) == 0


def test_a_miss_now_and_then_is_worth_it(spinning: Requests) -> None:
    for _ in range(100):
        for _ in range(MISS):
            assert spinning.spin.look(lambda: "found", spinning.clock()) == "found"
            assert spinning.request()
        while spinning.spin.wanted:
            spinning.spin.look(never, spinning.clock())
        assert spinning.request()


def test_who_loses_the_core_rests(spinning: Requests) -> None:
    for _ in range(LOSSES_MAX):
        assert spinning.spin.look(lambda: "found", spinning.clock(1.2 * LOST_S)) == "found"
        assert spinning.request()
    spinning.spin.look(never, spinning.clock(1.2 * LOST_S))
    assert not spinning.spin.wanted
    assert spinning.for_s(REST_MIN_S / 2) == 0
    assert spinning.for_s(1.0) > 0.5, "and tries again"


def test_a_few_losses_are_forgotten_with_the_trial(spinning: Requests) -> None:
    for _ in range(5):
        for _ in range(LOSSES_MAX):
            spinning.spin.look(lambda: "found", spinning.clock(1.2 * LOST_S))
            assert spinning.request()
        spinning.for_s(VALID_S)
        spinning.requests(2 * TRIAL + 4)
        assert spinning.spin.wanted


# --- both ends ------------------------------------------------------------------------------------


class Willing(Spin):
    """Always looks until something is found, however long that takes, and counts."""

    def __init__(self) -> None:
        super().__init__(LONGEST_S)
        self.told = self.found = 0

    def passed(self, now_s: float) -> bool:
        self.told += 1
        self.wanted = True
        return True

    def look(
        self, poll: Callable[[], T], now_s: Callable[[], float], looks: int = LOOKS
    ) -> T | None:
        found = poll()
        if found:
            self.found += 1
            self.wanted = False
        return found


@pytest.fixture
def receiver() -> Iterator[ReceiverThread]:
    with ReceiverThread(RealEnvironment(clock=VirtualClock())) as receiver:
        yield receiver


@pytest.fixture
def listener(receiver: ReceiverThread) -> ZmtpListener:
    listener = receiver.listen(ZmtpTransport(ZmtpOptions()), "tcp://127.0.0.1:0")
    assert isinstance(listener, ZmtpListener)
    return listener


def _later(peer: Peer, frames: Sequence[Buffer]) -> None:
    asyncio.get_running_loop().call_soon(peer.send, frames)


in_c = pytest.mark.skipif(not native.loaded, reason="without the module in C")


@pytest.mark.parametrize("directly", [pytest.param(True, marks=in_c), False])
def test_the_broker_looks_after_a_lone_request_and_comes_to_an_end(
    receiver: ReceiverThread,
    listener: ZmtpListener,
    monkeypatch: pytest.MonkeyPatch,
    directly: bool,
) -> None:
    """Time stands still here, so that requests follow at once and looking always pays."""
    looks = 0
    looker = Connection.looker

    def count() -> list[tuple[int, int]]:
        nonlocal looks
        looks += 1
        return listener._epoll.poll(0)

    def counted(connection: Connection, most_frames: int) -> Callable[[], Received | None] | None:
        look = looker(connection, most_frames)

        def count_too() -> Received | None:
            count()
            return None if look is None else look()

        return count_too if directly and look is not None else None

    def until_it_sleeps() -> None:
        while receiver.call(lambda: listener._spin.wanted):
            pass  # each call is a turn of the loop

    with Client(connect(listener.address, Limits())).connected() as client:
        for _ in range(2 * TRIAL + 4):
            assert client.ask(b"x") == [b"x"]
        until_it_sleeps()
        monkeypatch.setattr(Connection, "looker", counted)
        if not directly:
            receiver.call(lambda: setattr(listener, "_look_now", count))
        assert client.ask(b"x") == [b"x"]
        until_it_sleeps()
    assert LOOKS <= looks <= LOOKS_MAX + 2 * LOOKS


@pytest.mark.parametrize(
    ("frames", "answer"),
    [
        pytest.param([b"x"], _later, id="its answer waits, as for a sync"),
        pytest.param([b"x", b"y"], None, id="several frames"),
        pytest.param([bytes(SMALL_BYTES + 1)], None, id="large"),
    ],
)
def test_other_requests_are_none_to_look_after(
    receiver: ReceiverThread,
    listener: ZmtpListener,
    frames: list[bytes],
    answer: Callable[[Peer, Sequence[Buffer]], object] | None,
) -> None:
    receiver.answer = answer or receiver.answer
    spin = Willing()
    receiver.call(lambda: setattr(listener, "_spin", spin))
    with Client(connect(listener.address, Limits())).connected() as client:
        assert client.ask(*frames) == frames
        assert client.ask(*frames) == frames
    assert spin.told == 0


@pytest.mark.parametrize("others", [False, True])
def test_a_client_looks_unless_its_process_has_other_threads(
    listener: ZmtpListener, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    monkeypatch.setattr(channel, "_has_other_threads", lambda: others)
    connected = connect(listener.address, Limits())
    assert isinstance(connected, ZmtpChannel)
    with Client(connected).connected() as client:
        spin = Willing()
        monkeypatch.setattr(connected, "_spin", spin)
        for number in range(1, 11):
            assert connected.send([b"x"])
            while not client.messages[number - 1 :]:
                connected.wait(1.0)
                client.take()
        assert spin.told == 10
        assert spin.found == (0 if others else 10)


@pytest.mark.parametrize(
    ("names", "others"), [([], False), (["mq-client"] * 2, False), (["mq-client", "mq-t-0"], True)]
)
def test_workers_that_run_handlers_are_threads_of_the_host(
    monkeypatch: pytest.MonkeyPatch, names: list[str], others: bool
) -> None:
    threads = [threading.current_thread(), *(threading.Thread(name=name) for name in names)]
    monkeypatch.setattr(threading, "enumerate", lambda: threads)
    assert channel._has_other_threads() == others


def test_a_wait_for_which_nothing_was_asked_is_slept(listener: ZmtpListener) -> None:
    """As a consumer's is, whose answer comes when there is something."""
    connected = connect(listener.address, Limits())
    assert isinstance(connected, ZmtpChannel)
    with Client(connected).connected():
        connected._spin = spin = Willing()
        connected.wait(0.01)
    assert spin.told == 0


def test_what_came_while_a_client_looked_is_not_forgotten(
    listener: ZmtpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it sends, and so expects nothing for a moment, before it receives."""
    monkeypatch.setattr(channel, "_has_other_threads", lambda: False)
    connected = connect(listener.address, Limits())
    assert isinstance(connected, ZmtpChannel)
    with Client(connected).connected() as client:
        connected._spin = Willing()
        for number in range(1, 11):
            assert connected.send([b"x"])
            connected.wait(1.0)
            assert connected.send([b"y"])
            connected.wait(1.0)
            client.collect(2 * number)
    assert client.messages == [[b"x"], [b"y"]] * 10


class Alarm(Exception):
    """What the handler of a signal raises."""


class Interrupted(Willing):
    """Looks until something is found, and is interrupted before or just then."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.early = early

    def look(
        self, poll: Callable[[], T], now_s: Callable[[], float], looks: int = LOOKS
    ) -> T | None:
        while not self.early:
            if super().look(poll, now_s, looks):
                break
        raise Alarm


@pytest.mark.parametrize("early", [True, False])
def test_what_comes_to_a_client_that_is_interrupted_is_not_lost_in_silence(
    listener: ZmtpListener, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """It is received, or the connection ends, so that all is asked again."""
    monkeypatch.setattr(channel, "_has_other_threads", lambda: False)
    connected = connect(listener.address, Limits())
    assert isinstance(connected, ZmtpChannel)
    with Client(connected).connected() as client:
        connected._spin = Interrupted(early)
        assert connected.send([b"x"])
        with pytest.raises(Alarm):
            connected.wait(1.0)
        connected._spin = Willing()
        client.until(lambda: client.messages or "disconnected" in client.events)
        assert client.messages or (native.loaded and not early)


class Looking(Willing):
    """Looks for long at whom was answered last; everybody else has to wait."""

    def look(
        self, poll: Callable[[], T], now_s: Callable[[], float], looks: int = LOOKS
    ) -> T | None:
        self.wanted = False
        return next((found for _ in range(20_000) if (found := poll())), None)


@pytest.mark.parametrize("parts", [1, 2, 30])
def test_what_came_while_the_broker_looked_may_be_a_part(
    receiver: ReceiverThread, listener: ZmtpListener, parts: int
) -> None:
    """Or several messages, or the end: it is heard as at any other time."""
    receiver.call(lambda: setattr(listener, "_spin", Looking()))
    host, _, port = listener.address.removeprefix("tcp://").partition(":")
    said = message([b"first", b"of two"]) + message([b"second" * 100])
    size = -(-len(said) // parts)
    with socket.create_connection((host, int(port))) as client, client.makefile("rb") as heard:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(GREETING + ready())
        heard.read(len(GREETING) + len(BROKER.ready))
        for _ in range(3):
            client.sendall(message([b"alone"]))
            assert heard.read(len(message([b"alone"]))) == message([b"alone"])
            for at in range(0, len(said), size):
                client.sendall(said[at : at + size])
            assert heard.read(len(said)) == said
        client.sendall(message([b"alone"]))
        assert heard.read(len(message([b"alone"]))) == message([b"alone"])
    receiver.until(lambda: not listener.connections)


def test_others_are_heard_while_the_broker_looks_at_one(
    receiver: ReceiverThread, listener: ZmtpListener
) -> None:
    receiver.call(lambda: setattr(listener, "_spin", Willing()))
    with (
        Client(connect(listener.address, Limits())).connected() as one,
        Client(connect(listener.address, Limits())).connected() as other,
    ):
        for _ in range(20):
            assert one.ask(b"one") == [b"one"]
            assert other.ask(b"other") == [b"other"]


class Stubborn(Willing):
    """Looks until something is found, and gives the loop no turn before."""

    gave_up = False
    patience_s = PATIENCE_S / 4

    def look(
        self, poll: Callable[[], T], now_s: Callable[[], float], looks: int = LOOKS
    ) -> T | None:
        begun_s = time.monotonic()
        while not (found := super().look(poll, now_s)):
            if time.monotonic() > begun_s + self.patience_s:
                self.gave_up = True
                return None
        return found


def test_who_asks_is_found_by_looking_though_another_was_answered_last(
    receiver: ReceiverThread, listener: ZmtpListener
) -> None:
    """Where two take turns, or one ends and the other goes on, it is not looked at one only."""
    spin = Stubborn()
    receiver.call(lambda: setattr(listener, "_spin", spin))
    with (
        Client(connect(listener.address, Limits())).connected() as one,
        Client(connect(listener.address, Limits())).connected() as other,
    ):
        for client in [one, other, one, other, one, one, one]:
            assert client.ask(b"x") == [b"x"]
            assert not spin.gave_up
        spin.patience_s = 0.0


def _look_on(listener: ZmtpListener) -> None:
    """On the loop: as if it had looked for a while already."""
    listener._spin = spin = Willing()
    spin.wanted = True
    listener._look_on()


def test_others_need_not_wait_for_the_end_of_a_look_at_one(
    receiver: ReceiverThread, listener: ZmtpListener
) -> None:
    with (
        Client(connect(listener.address, Limits())).connected() as one,
        Client(connect(listener.address, Limits())).connected() as other,
    ):
        assert one.ask(b"once") == [b"once"]
        assert one.ask(b"again") == [b"again"]

        def look_as_the_other_asks() -> list[bytes]:
            assert other.channel.send([b"x"])
            assert select.select([listener._epoll], [], [], PATIENCE_S)[0]
            _look_on(listener)
            return receiver.messages[-1][1]

        assert receiver.call(look_as_the_other_asks) == [b"x"]


@pytest.mark.parametrize("why", ["closed", "paused", "gone"])
def test_who_is_not_to_be_heard_is_not_looked_at(
    receiver: ReceiverThread, listener: ZmtpListener, why: str
) -> None:
    with Client(connect(listener.address, Limits())).connected() as client:
        assert client.ask(b"once") == [b"once"]
        assert client.ask(b"again") == [b"again"]

        def look_as_it_asks() -> list[bytes]:
            peer, _ = receiver.messages[-1]
            assert isinstance(peer, Connection)
            assert client.channel.send([b"x"])
            if why == "paused":
                peer.send([bytes(2 * listener.credit_bytes)])
                assert peer.paused
            elif why == "closed":
                peer.close()
            else:
                listener.drop(peer)
            _look_on(listener)
            return receiver.messages[-1][1]

        assert receiver.call(look_as_it_asks) == [b"again"]
