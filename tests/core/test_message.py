"""What a message is before it is sent."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cometmq.message import Message


def test_without_properties_there_are_none() -> None:
    message = Message("orders", b"one")
    assert message.properties == {} and not message.properties
    assert message == Message("orders", b"one", properties={})
    assert "properties={}" in repr(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda properties: properties.__setitem__("city", "Ulm"),
        lambda properties: properties.update(city="Ulm"),
        lambda properties: properties.setdefault("city", "Ulm"),
        lambda properties: properties.__ior__({"city": "Ulm"}),
    ],
)
def test_the_properties_that_a_message_has_not_can_not_be_changed(
    change: Callable[[Any], object],
) -> None:
    with pytest.raises(TypeError, match="when it is made"):
        change(Message("orders", b"one").properties)
    assert Message("orders", b"two").properties == {}


@pytest.mark.parametrize(
    "made_again",
    [
        copy.copy,
        copy.deepcopy,
        lambda message: pickle.loads(pickle.dumps(message)),
        lambda message: msgspec.json.decode(msgspec.json.encode(message), type=Message),
    ],
)
def test_a_message_can_be_copied_and_handed_on(made_again: Callable[[Message], Message]) -> None:
    message = Message("orders", b"one", tag="paid", keys=["42"])
    assert made_again(message) == message
