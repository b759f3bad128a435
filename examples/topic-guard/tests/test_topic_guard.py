"""The three hooks, without a broker: a plugin is an object, and its hooks are methods."""

from __future__ import annotations

import msgspec
import pytest
from topic_guard import TopicGuard, TopicGuardOptions

from cometmq.batch import (
    Batch,
    RecordTuple,
    decode_records,
    encode_messages,
    parse,
    verify_producer,
)
from cometmq.batch.compression import compress
from cometmq.client.codecs import make_codec
from cometmq.interfaces import Refuse, Replace


class Session(msgspec.Struct):
    client_id: str
    principal: str | None = None
    id: int = 1
    peer_name: str = "127.0.0.1"


ALICE, BOB = Session("alice"), Session("bob")


def guard(**options: object) -> TopicGuard:
    return TopicGuard(msgspec.convert(options, TopicGuardOptions))


def batch(topic: str, *tags: str) -> Batch:
    records = [(0, b"body", tag, (), {"sender": "forged"}) for tag in tags or ("",)]
    return parse(encode_messages(topic, 0, records))


@pytest.mark.parametrize("operation", ["SEND", "TOPIC_DELETE"])
def test_only_owners_change_an_owned_topic(operation: str) -> None:
    plugin = guard(owned=["audit.*"], owners=["alice"])
    assert plugin.authorize(ALICE, operation, "audit.eu") is None
    refused = plugin.authorize(BOB, operation, "audit.eu")
    assert refused is not None and refused.code == "NOT_AUTHORIZED"
    assert "bob does not own topic audit.eu" in refused.reason
    assert plugin.authorize(BOB, operation, "orders") is None


def test_everybody_reads_an_owned_topic() -> None:
    assert guard(owned=["*"]).authorize(BOB, "FETCH", "audit") is None


def test_who_authenticated_counts_by_the_principal() -> None:
    plugin = guard(owned=["audit"], owners=["alice"])
    assert plugin.authorize(Session("x7", "alice"), "SEND", "audit") is None
    assert isinstance(plugin.authorize(Session("alice", "eve"), "SEND", "audit"), Refuse)


def test_a_send_above_the_bound_is_refused() -> None:
    plugin = guard(request_max_bytes=1000)
    assert plugin.admit("SEND", 1000) is None
    assert plugin.admit("FETCH", 5000) is None
    refused = plugin.admit("SEND", 1001)
    assert refused is not None and refused.code == "TOO_LARGE"
    assert guard().admit("SEND", 10**9) is None


def test_a_batch_with_a_forbidden_tag_is_refused() -> None:
    plugin = guard(forbidden_tags=["debug"])
    assert isinstance(plugin.before_append(BOB, batch("orders", "paid", "debug")), Refuse)
    assert plugin.before_append(BOB, batch("orders", "paid")) is None


def test_what_it_has_to_read_must_not_be_compressed() -> None:
    plugin = guard(forbidden_tags=["debug"], signed=["audit"])
    zeros: list[RecordTuple] = [(0, bytes(1000), tag, (), {}) for tag in ("paid", "debug")]

    def compressed(topic: str, *records: RecordTuple) -> Batch:
        return parse(compress(encode_messages(topic, 0, records), "zstd", make_codec("zstd")))

    assert plugin.before_append(BOB, compressed("orders", zeros[0])) is None
    for topic, records in (("orders", zeros), ("audit", zeros[:1])):
        refused = plugin.before_append(BOB, compressed(topic, *records))
        assert isinstance(refused, Refuse) and "without compression" in refused.reason


def test_messages_of_a_signed_topic_bear_the_senders_name() -> None:
    plugin = guard(signed=["orders"])
    replaced = plugin.before_append(BOB, batch("orders", "a", "b"))
    assert isinstance(replaced, Replace)
    signed = parse(replaced.batch)
    verify_producer(signed)
    assert [record[4] for record in decode_records(signed)] == [{"sender": "bob"}] * 2
    assert plugin.before_append(BOB, batch("other")) is None
