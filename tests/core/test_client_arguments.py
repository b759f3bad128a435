"""Arguments that can't be used: one sentence that names the argument, what came, what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cometmq import Admin, Consumer, Message, Producer, PullConsumer
from cometmq.errors import ConfigError, Refused
from cometmq.protocol import Retention
from cometmq.testing import EmbeddedBroker
from cometmq.testing.clock import VirtualClock
from cometmq.testing.movable_clock import MovableClock

A = "tcp://127.0.0.1:7800"

OPTIONS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (Producer, {"buffer_bytes": "1MB"}),
    (Producer, {"batch_bytes": 0.5}),
    (Producer, {"send_timeout": "5"}),
    (Producer, {"send_timeout": None}),
    (Producer, {"linger_ms": float("nan")}),
    (Producer, {"linger_ms": True}),
    (PullConsumer, {"fetch_bytes": "1MB"}),
    (PullConsumer, {"fetch_wait": "5"}),
    (PullConsumer, {"timeout": "5"}),
    (Consumer, {"group": "g", "heartbeat": "3"}),
    (Consumer, {"group": "g", "prefetch_messages": 1.5}),
    (Consumer, {"group": "g", "fetch_bytes": "1MB"}),
    (Consumer, {"group": "g", "fetch_wait": "5"}),
    (Consumer, {"group": "g", "timeout": "5"}),
    (Admin, {"timeout": "5"}),
]


@pytest.mark.parametrize(("make", "options"), OPTIONS, ids=lambda it: str(it))
def test_an_option_that_is_no_such_number(
    make: Callable[..., Any], options: dict[str, Any]
) -> None:
    name, value = list(options.items())[-1]
    with pytest.raises(ConfigError, match="is wanted") as told:
        make(A, **options)
    assert str(told.value).startswith(f"{name}={value!r}: a ")


def test_an_address_that_is_no_text() -> None:
    address: Any = 7800
    with pytest.raises(ConfigError, match="address=7800: a text is wanted"):
        Producer(address)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("tcp://127.0.0.1:78000", "'78000' in .* is no port"),
        ("tcp://127.0.0.1:0", "'0' in .* is no port"),
        ("tcp://127.0.0.1", "lacks host or port"),
        ("tcp://::1:7800", "in brackets"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused_before_anything_is_sent(
    address: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Producer(address)


def calls(consumer: PullConsumer, member: Consumer, producer: Producer) -> dict[str, Any]:
    """Calls with a wrong argument, by what their sentence begins with."""
    wrong: Any = "1"
    return {
        "timeout='1': a number is": lambda: consumer.poll(timeout=wrong),
        "max_messages='1': a whole number from 1 up": lambda: consumer.poll(max_messages=wrong),
        "offset='1': a whole number from 0 up": lambda: consumer.seek(wrong),
        "workers='1': a whole number from 1 to 1000": lambda: member.subscribe(
            "t", handler=print, workers=wrong
        ),
        "timeout='1': a number": lambda: producer.flush(timeout=wrong),
        "timeout='1': ": lambda: member.receive(timeout=wrong),
        "timeout=nan: a number is": lambda: consumer.poll(timeout=float("nan")),
        "timeout=nan: a number": lambda: member.receive(timeout=float("nan")),
    }


def test_a_call_with_something_that_is_no_such_number(mq_broker: EmbeddedBroker) -> None:
    with (
        PullConsumer(mq_broker.address, topic="t") as consumer,
        Consumer(mq_broker.address, group="g") as member,
        Producer(mq_broker.address) as producer,
    ):
        producer.send(Message("t", b""))
        member.subscribe("t")
        for sentence, call in calls(consumer, member, producer).items():
            with pytest.raises(Refused, match=f"^{sentence}"):
                call()


def test_a_request_that_the_broker_could_not_read_names_the_argument(
    mq_broker: EmbeddedBroker,
) -> None:
    text: Any = "6h"
    with Admin(mq_broker.address) as admin:
        admin.create_topic("t")
        for call, sentence in (
            (lambda: admin.create_topic("x", queues=text), "queues='6h': .*int"),
            (lambda: admin.create_topic("x", queues=-1), "queues=-1: "),
            (lambda: admin.create_topic("x", readable=text), "readable='6h': .*bool"),
            (lambda: admin.alter_topic("t", queues=text), "queues='6h': .*int"),
            (
                lambda: admin.alter_topic("t", retention=Retention(time_ms=text)),
                "retention.time_ms='6h': .*int",
            ),
            (lambda: admin.alter_topic("t", retention=text), "retention='6h': a Retention"),
            (lambda: admin.reset_group("g", "earliest", "t", queues=text), "queues=.'6', 'h'.: "),
            (lambda: admin.reset_offsets("g", "t", "earliest", text), "queue='6h': a whole"),
            (lambda: admin.list_topics(prefix=None), "prefix=None: .*str"),  # type: ignore[arg-type]
        ):
            with pytest.raises(Refused, match=f"^{sentence}"):
                call()


def test_a_property_that_is_no_text_is_named(mq_broker: EmbeddedBroker) -> None:
    properties: Any = {"city": "Ulm", "n": 1}
    with (
        Producer(mq_broker.address) as producer,
        pytest.raises(Refused, match="property 'n': 1 is int; text is wanted"),
    ):
        producer.send(Message("t", b"", properties=properties))


def test_plugins_of_an_embedded_broker_are_several_names() -> None:
    with pytest.raises(ConfigError, match=r"plugins='flush-async': .*plugins=\['flush-async'\]"):
        EmbeddedBroker(plugins="flush-async")


def test_a_clock_goes_on_by_numbers() -> None:
    text: Any = "5"
    for clock in (VirtualClock(), MovableClock()):
        with pytest.raises(ValueError, match="'5' seconds can't pass: .* a number of seconds"):
            clock.advance(text)
