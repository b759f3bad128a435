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


def test_a_result_shows_what_matters(mq_broker: EmbeddedBroker) -> None:
    with Producer(mq_broker.address) as producer:
        result = producer.send(Message("orders", b"a"))
    assert repr(result).startswith("SendResult(topic='orders', queue=")
