"""The listener's dealings with the system: names of sockets, and what it may refuse."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.errors import ConfigError
from cometmq.interfaces import Limits
from cometmq.real_environment import RealEnvironment
from cometmq.testing.transport_ends import Caller, ReceiverThread
from cometmq.testing.zmtp import ZmtpPeer, frame
from cometmq_transports.address import check_socket_file, parse
from cometmq_transports.zmtp import ZmtpOptions, ZmtpTransport, connect
from cometmq_transports.zmtp.listener import ZmtpListener


@pytest.fixture
def receiver() -> Iterator[ReceiverThread]:
    """One for which time goes by."""
    with ReceiverThread(RealEnvironment()) as receiver:
        yield receiver


@pytest.mark.parametrize("listening", [False, True])
def test_a_name_that_is_none_is_refused(listening: bool) -> None:
    """The system would choose one by itself, which nobody knows."""
    with pytest.raises(ConfigError, match=r"ipc://@mq"):
        parse("ipc://@", listening=listening)


def test_whoever_is_about_to_listen_keeps_its_socket_file(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(path)
        listening = threading.Timer(0.02, theirs.listen)
        listening.start()
        with pytest.raises(ConfigError, match="in use by another process"):
            check_socket_file(f"ipc://{path}", path)
        listening.join()


def test_the_file_of_a_killed_process_is_taken_over(
    tmp_path: Path, receiver: ReceiverThread
) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(path)
    listener = receiver.listen(ZmtpTransport(ZmtpOptions()), f"ipc://{path}", None)
    with Caller(connect(listener.address, Limits())).connected() as caller:
        assert caller.ask(b"x") == [b"x"]


class Refusing:
    """An epoll that watches one more only after a refusal."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._refusals = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def register(self, *arguments: Any) -> None:
        if self._refusals:
            self._refusals -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._real.register(*arguments)


def test_a_connection_that_can_not_be_watched_is_dropped(receiver: ReceiverThread) -> None:
    """A user may watch so many descriptors and no more (fs.epoll.max_user_watches)."""
    listener = receiver.listen(ZmtpTransport(ZmtpOptions()), "tcp://127.0.0.1:0", None)
    assert isinstance(listener, ZmtpListener)
    refusing: Any = Refusing(listener._epoll)
    receiver.call(lambda: setattr(listener, "_epoll", refusing))
    with ZmtpPeer(listener.address) as unlucky:
        assert unlucky.ended()
    with Caller(connect(listener.address, Limits())).connected() as caller:
        assert caller.ask(b"x") == [b"x"]
        assert receiver.call(lambda: listener.connections) == 1
    assert listener.counters["accept_failed"] == 1


class CountingLoop:
    """An event loop that knows how many calls of one kind are queued at once."""

    def __init__(self, real: Any, of: str) -> None:
        self._real = real
        self._of = of
        self._queued = 0
        self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def call_soon(self, callback: Callable[[], None]) -> None:
        if callback.__name__ != self._of:
            self._real.call_soon(callback)
            return
        self._queued += 1
        self.most = max(self.most, self._queued)

        def called() -> None:
            self._queued -= 1
            callback()

        self._real.call_soon(called)


def test_a_flood_queues_one_turn_at_a_time(receiver: ReceiverThread) -> None:
    """More would be taken one after the other, and the loop do nothing else meanwhile."""
    listener = receiver.listen(ZmtpTransport(ZmtpOptions()), "tcp://127.0.0.1:0", None)
    assert isinstance(listener, ZmtpListener)
    loop = CountingLoop(listener._loop, "_look")
    listener._loop = loop  # type: ignore[assignment]
    with Caller(connect(listener.address, Limits())).connected() as caller:
        peers = [ZmtpPeer(listener.address).shake_hands() for _ in range(2)]
        for peer in peers:
            peer.send(frame(b"") * 100_000)
            assert caller.ask(b"x") == [b"x"]
        for peer in peers:
            peer.close()
    assert loop.most == 1
