"""Codecs that run out of memory or break: no message is lost for it, and no buffer outgrows its
bound because what is in it is short on the wire."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cometmq import BufferFull, ConfigError, Message, Producer, PullConsumer, Refused
from cometmq.batch.compression import compress
from cometmq.client.codecs import codec_for, make_codec, maker_of
from cometmq.errors import Unreadable
from cometmq.protocol import Operation
from cometmq.testing import EmbeddedBroker
from cometmq.testing.raw_client import batch_of
from cometmq.testing.scripted_broker import ScriptedBroker

NAMES = ("zstd", "lz4")
each_codec = pytest.mark.parametrize("name", NAMES)


class Faulty:
    """Lets a codec's method fail at some of its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, method: str) -> None:
        self.calls = 0
        self.fail_at: set[int] = set()
        self.error: Exception = MemoryError("no memory")
        kind: Any = type(make_codec(name))
        real = getattr(kind, method)

        def call(codec: Any, *arguments: Any) -> Any:
            self.calls += 1
            if self.calls in self.fail_at:
                raise self.error
            return real(codec, *arguments)

        monkeypatch.setattr(kind, method, call)


def scripted(name: str, batches: int) -> ScriptedBroker:
    """A broker whose queue has so many compressed batches of one message each."""
    broker = ScriptedBroker(queues=1)
    for number in range(batches):
        body = b"%03d" % number * 500
        broker.put("t", 0, compress(batch_of("t", 0, body), name, make_codec(name)))
    return broker


@each_codec
@pytest.mark.parametrize("fail_at", [{1}, {3}, {1, 2, 5}, {6}])
def test_a_batch_for_which_memory_was_short_comes_with_the_next_poll(
    name: str, fail_at: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = scripted(name, 6)
    faulty = Faulty(monkeypatch, name, "decompress")
    faulty.fail_at = fail_at
    found: list[int] = []
    with PullConsumer("scripted://x", topic="t", connect=broker.connect) as consumer:
        for _ in range(20):
            try:
                found += [message.offset for message in consumer.poll(timeout=10)]
            except MemoryError:
                assert consumer.position(0) == len(found)
            if len(found) == 6:
                break
    assert found == list(range(6))
    assert faulty.calls == 6 + len(fail_at)


def test_what_zstd_can_not_decompress_for_want_of_memory_is_not_called_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = sys.modules[type(make_codec("zstd")).__module__]

    class Short:
        def __init__(self, **options: Any) -> None: ...

        def decompress(self, data: Any, max_length: int) -> bytes:
            reason = "Unable to decompress Zstandard data: Allocation error : not enough memory"
            raise module.zstd.ZstdError(reason)

    monkeypatch.setattr(module.zstd, "ZstdDecompressor", Short)
    broker = scripted("zstd", 1)
    with PullConsumer(
        "scripted://x", topic="t", connect=broker.connect, unreadable="skip"
    ) as consumer:
        with pytest.raises(MemoryError, match="not enough memory"):
            consumer.poll(timeout=10)
        monkeypatch.undo()
        assert [message.offset for message in consumer.poll(timeout=10)] == [0]


@each_codec
def test_what_can_not_be_compressed_ends_its_messages_and_gives_its_room_back(
    name: str, mq_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = Faulty(monkeypatch, name, "compress")
    faulty.error = RuntimeError("out of order")
    message = Message("t", bytes(40_000), sharding_key="k")
    with Producer(
        mq_broker.address, compression=name, buffer_bytes=100_000, when_full="raise"
    ) as producer:
        producer.send(message)
        faulty.fail_at = set(range(faulty.calls + 1, faulty.calls + 8))
        for _ in range(5):
            with pytest.raises(Refused, match="can't be encoded: out of order"):
                producer.send(message)
        with pytest.raises(Refused, match="can't be encoded: out of order"):
            producer.send_one_way(message)
        receipt = producer.send_soon(message)
        producer.flush(10)
        assert receipt.done() and isinstance(receipt.exception(), Refused)
        assert producer.send(message).offset == 1


@pytest.mark.parametrize("name", [None, *NAMES])
def test_the_buffer_bounds_messages_as_they_are_and_not_as_they_go(name: str | None) -> None:
    broker = ScriptedBroker(queues=1)
    broker.hold(Operation.SEND)
    accepted = 0
    with Producer(
        "scripted://x",
        connect=broker.connect,
        compression=name,
        buffer_bytes=1 << 20,
        when_full="raise",
        send_timeout=0.5,
    ) as producer:
        with pytest.raises(BufferFull):
            while accepted < 8 << 20:
                producer.send_soon(Message("t", bytes(20_000)))
                accepted += 20_000
    assert accepted <= 1 << 20


@pytest.fixture
def zstd_of_another_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package is there, and lacks what is wanted of it."""
    module: Any = sys.modules[type(make_codec("zstd")).__module__]
    monkeypatch.delattr(module.zstd, "CompressionParameter")
    monkeypatch.delitem(sys.modules, module.__name__)
    for known in (codec_for, maker_of):
        known.cache_clear()
    yield
    for known in (codec_for, maker_of):
        known.cache_clear()


def test_a_package_that_breaks_is_told_like_one_that_is_missing(
    request: pytest.FixtureRequest,
) -> None:
    broker = scripted("zstd", 1)
    request.getfixturevalue("zstd_of_another_version")
    told = r"zstd can't be had from cometmq_plugins\.codecs\.zstd.*: .*CompressionParameter"
    with pytest.raises(ConfigError, match=told):
        Producer("scripted://x", compression="zstd", connect=broker.connect)
    with PullConsumer("scripted://x", topic="t", connect=broker.connect) as consumer:
        with pytest.raises(Unreadable, match=told) as caught:
            consumer.poll(timeout=10)
        assert "pip install -U 'cometmq[zstd]'" in str(caught.value)
        assert consumer.position(0) == 0
