"""The tag expression: what it names, and what it refuses rather than match nothing."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq import Consumer
from cometmq.errors import Refused
from cometmq.tags import parse_tags, tag_expression
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
