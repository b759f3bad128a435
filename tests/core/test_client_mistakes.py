"""What people hand to a producer by mistake is refused by name, in every way of sending."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq import Message, Producer
from cometmq.errors import Refused
from cometmq.testing import EmbeddedBroker

NO_MESSAGES: list[Any] = ["text", b"bytes", None, ("orders", b"body")]


@pytest.mark.parametrize("thing", NO_MESSAGES, ids=lambda thing: type(thing).__name__)
def test_what_is_no_message(mq_broker: EmbeddedBroker, thing: Any) -> None:
    with Producer(mq_broker.address) as producer:
        producer.send(Message("orders", b"opens the batch"))
        for send in (producer.send, producer.send_soon, producer.send_one_way):
            with pytest.raises(Refused, match="Message"):
                send(thing)
        first, wrong, last = producer.send_many(
            [Message("orders", b"a"), thing, Message("orders", b"b")]
        )
        assert isinstance(wrong, Refused)
        assert not isinstance(first, Exception)
        assert not isinstance(last, Exception)


def test_a_sharding_key_that_is_no_text(mq_broker: EmbeddedBroker) -> None:
    key: Any = 5
    with Producer(mq_broker.address) as producer:
        for _ in range(2):  # with and without an open batch
            with pytest.raises(Refused, match="5"):
                producer.send_soon(Message("orders", b"a", sharding_key=key))


class Unhashable(str):
    __hash__ = None  # type: ignore[assignment]


class Encodes:
    """Half a text."""

    def encode(self) -> str:
        return "no bytes"


WRONG: dict[str, list[Any]] = {
    "topic": [None, 5, b"t", [], ["t"], {"t": 1}, Unhashable("t!"), "ü"],
    "body": [None, 5, "text", ["b"], object()],
    "tag": [5, b"t", ["t"], {"t": 1}, "\ud800"],
    "keys": [5, "text", b"k", [5], [["k"]], [None], object(), ["\ud800"]],
    "properties": [5, "a", [("a", "b")], {"a": 1}, {1: "a"}, {"a": ["b"]}],
    "sharding_key": [5, b"k", ["k"], {"k": 1}, object(), Encodes(), "\ud800"],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_field_of_the_wrong_type_is_refused_in_every_way_of_sending(
    mq_broker: EmbeddedBroker, field: str
) -> None:
    good = Message("orders", b"good")
    for value in WRONG[field]:
        wrong = Message(**{"topic": "orders", "body": b"b", field: value})
        with Producer(mq_broker.address, linger_ms=10_000) as producer:
            for known in (False, True):
                for send in (producer.send, producer.send_soon, producer.send_one_way):
                    with pytest.raises(Refused):
                        send(wrong)
                outcomes = producer.send_many([good, wrong, good] if known else [wrong])
                assert [isinstance(each, Refused) for each in outcomes].count(True) == 1, value
                producer.send(good)
            kept = [producer.send_soon(good) for _ in range(3)]  # a batch is open
            for level in ("memory", None):
                for send_at in (producer.send, producer.send_soon):
                    with pytest.raises(Refused):
                        send_at(wrong, level)
            producer.flush()
            assert [receipt.result().topic for receipt in kept] == ["orders"] * 3, value


def test_a_level_that_is_none(mq_broker: EmbeddedBroker) -> None:
    good = Message("orders", b"good")
    levels: list[Any] = ["", "gold", 0, 5, b"disk", ["disk"], {"disk": 1}]
    with Producer(mq_broker.address, linger_ms=10_000) as producer:
        for level in levels * 2:
            for send in (producer.send, producer.send_soon):
                with pytest.raises(Refused, match="choose one of"):
                    send(good, level)
            with pytest.raises(Refused, match="choose one of"):
                producer.send_many([good], level)
            producer.send_soon(good)


@pytest.mark.parametrize("messages", [None, 5, (m for m in [Message("t", b"")]), Message("t", b"")])
def test_many_messages_that_are_no_sequence(mq_broker: EmbeddedBroker, messages: Any) -> None:
    with Producer(mq_broker.address) as producer:
        with pytest.raises(Refused, match=f"{type(messages).__name__} is no sequence"):
            producer.send_many(messages)
        assert producer.send_many([]) == []


def test_a_result_shows_what_matters(mq_broker: EmbeddedBroker) -> None:
    with Producer(mq_broker.address) as producer:
        result = producer.send(Message("orders", b"a"))
    assert repr(result).startswith("SendResult(topic='orders', queue=")
