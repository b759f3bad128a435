"""The tag expression: what it names, and what it refuses rather than match nothing."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from cometmq import Consumer
from cometmq.errors import Refused
from cometmq.tags import check_tag, parse_tags, tag_expression
from cometmq.testing import EmbeddedBroker


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("", None),
        ("*", None),
        ("a || *", None),
        ("a", {"a"}),
        (" a||b ", {"a", "b"}),
        ("two words || b", {"two words", "b"}),
        ("a,b", {"a,b"}),
        ("band || order", {"band", "order"}),
    ],
)
def test_what_it_names(expression: str, tags: set[str] | None) -> None:
    assert parse_tags(expression) == tags
    assert parse_tags(tag_expression(parse_tags(expression))) == tags


@pytest.mark.parametrize(
    "expression",
    ["a || || b", "||", "a && b", "a | b", "a & b", "a, b", "a or b", "a AND b", "a|b"],
)
def test_what_it_refuses(expression: str) -> None:
    with pytest.raises(Refused, match="paid || refunded"):
        parse_tags(expression)


PARTS = ["a", "order", "*", "|", "&", ",", ";", " ", "\t", "\u2003", "\x1c", "or", "AND", "-", "é"]
NAMES = ["".join(parts) for size in range(4) for parts in product(PARTS, repeat=size)]


def test_a_message_has_just_the_tags_that_can_be_subscribed() -> None:
    refused = 0
    for tag in filter(None, NAMES):
        try:
            found = parse_tags(tag) or ()
        except Refused:
            found = ()
        if set(found) == {tag}:
            check_tag(tag)
            continue
        with pytest.raises(Refused, match="could not be subscribed") as refusal:
            check_tag(tag)
        assert repr(tag) in str(refusal.value)
        refused += 1
    assert 0 < refused < len(NAMES)


def test_no_tag_is_a_tag_too() -> None:
    check_tag("")


@pytest.mark.parametrize("expression", [None, ["paid"]])
def test_what_is_no_text_is_refused(expression: Any) -> None:
    with pytest.raises(Refused, match="a text is wanted"):
        parse_tags(expression)


def test_a_coroutine_function_is_no_handler_of_the_sync_face(mq_broker: EmbeddedBroker) -> None:
    async def handle(message: object) -> None: ...

    handler: Any = handle
    with Consumer(mq_broker.address, group="g") as consumer:
        with pytest.raises(Refused, match="cometmq.aio"):
            consumer.subscribe("orders", handler=handler)
