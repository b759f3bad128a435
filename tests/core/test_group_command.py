"""`mq group` and the admin client's methods for groups, before a real broker in process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cometmq import Admin, Consumer, Message, Producer, PullConsumer, Refused, aio
from cometmq.cli import cli
from cometmq.testing import EmbeddedBroker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Topic orders with ten messages in one of two queues, of which group billing read four."""
    with EmbeddedBroker() as broker:
        with Admin(broker.address) as admin, Producer(broker.address) as producer:
            admin.create_topic("orders", queues=2)
            producer.send_many([Message("orders", b"x", sharding_key="a")] * 10)
        with PullConsumer(broker.address, group="billing", topic="orders") as consumer:
            assert len(consumer.poll(max_messages=4, timeout=10)) == 4
            consumer.commit()
        yield broker


def run(broker: EmbeddedBroker, *arguments: str, typed: str = "") -> Result:
    command = ["group", *arguments, "--connect", broker.address]
    return CliRunner().invoke(cli, command, input=typed)


def told(broker: EmbeddedBroker, *arguments: str) -> str:
    result = run(broker, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def as_json(broker: EmbeddedBroker, *arguments: str) -> Any:
    return json.loads(told(broker, *arguments, "--json"))


def test_list_lag_members_and_describe(broker: EmbeddedBroker) -> None:
    assert told(broker, "list").splitlines() == [
        "group    members  topics  lag",
        "billing        0       1    6",
    ]
    assert as_json(broker, "list", "--prefix", "x") == []
    (row,) = as_json(broker, "lag", "billing")
    assert (row["topic"], row["lag"]) == ("orders", 6)
    assert told(broker, "lag", "billing").splitlines()[0].split() == ["topic", "lag", "oldest"]
    assert told(broker, "members", "billing") == "group billing has no members now\n"
    described = as_json(broker, "describe", "billing")
    assert sorted(each["lag"] for each in described["queues"]) == [0, 6]
    assert told(broker, "describe", "billing").startswith("billing: 0 members\n")


def test_reset_dry_run_and_undo(broker: EmbeddedBroker) -> None:
    dry = told(broker, "reset", "billing", "--to", "latest", "--dry-run")
    assert dry.splitlines()[-1] == "would move 2 queues; nothing was changed"
    assert told(broker, "reset", "billing", "--to", "latest").splitlines()[-1] == "moved 2 queues"
    assert as_json(broker, "lag", "billing")[0]["lag"] == 0
    assert "its last reset can be undone" in told(broker, "describe", "billing")
    told(broker, "reset", "billing", "--undo")
    assert as_json(broker, "lag", "billing")[0]["lag"] == 6
    moved = as_json(broker, "reset", "billing", "--to", "1", "--topic", "orders", "--queue", "0")
    assert [part["queue"] for part in moved["parts"]] == [0]
    told(broker, "reset", "billing", "--to", "2000-01-01T00:00:00Z")
    assert as_json(broker, "lag", "billing")[0]["lag"] == 10


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reset", "billing"], "give --to, or --undo"),
        (["reset", "billing", "--to", "latest", "--undo"], "give --to, or --undo"),
        (["reset", "billing", "--to", "latest", "--queue", "1"], "give --topic too"),
        (["reset", "billing", "--to", "soon"], "--to 'soon' is none of earliest"),
    ],
)
def test_mistakes_on_the_command_line(
    broker: EmbeddedBroker, arguments: list[str], sentence: str
) -> None:
    result = run(broker, *arguments)
    assert result.exit_code == 2
    assert sentence in result.output


def test_delete_forgets_the_group(broker: EmbeddedBroker) -> None:
    assert told(broker, "delete", "billing", "--yes") == "deleted group billing\n"
    result = run(broker, "describe", "billing")
    assert isinstance(result.exception, Refused)
    assert result.exception.code == "GROUP_NOT_FOUND"


@pytest.mark.parametrize(
    ("typed", "code", "sentence"),
    [
        ("", 2, "nobody is there to be asked, so group billing was not deleted; --yes"),
        ("", 2, "[y/N]: \n"),
        ("n\n", 1, "group billing was not deleted: the answer was no"),
    ],
)
def test_delete_asks_first(broker: EmbeddedBroker, typed: str, code: int, sentence: str) -> None:
    result = run(broker, "delete", "billing", typed=typed)
    assert (result.exit_code, sentence in result.output) == (code, True), result.output
    assert as_json(broker, "lag", "billing")
    assert "deleted group" in run(broker, "delete", "billing", typed="y\n").output


def test_the_admin_clients_have_the_same(broker: EmbeddedBroker) -> None:
    with Admin(broker.address) as admin:
        assert [each.group for each in admin.list_groups()] == ["billing"]
        admin.reset_group("billing", datetime(2000, 1, 1, tzinfo=UTC))
        admin.reset_group("billing", "undo")
        with pytest.raises(Refused, match="'earliest', 'latest'"):
            admin.reset_group("billing", "somewhere")

    async def awaited() -> None:
        async with aio.Admin(broker.address) as admin:
            assert [each.lag for each in await admin.list_groups("bill")] == [6]
            (part,) = await admin.reset_group("billing", 0, "orders", [0], dry_run=True)
            assert part.new_offset == 0
            assert len((await admin.describe_group("billing")).queues) == 2
            await admin.delete_group("billing")
            assert await admin.list_groups() == []

    asyncio.run(awaited())


def test_what_a_filter_left_out_is_no_lag_for_long(broker: EmbeddedBroker) -> None:
    with Producer(broker.address) as producer:
        producer.send_many([Message("unwanted", b"x", "open")] * 20)
    with Consumer(broker.address, group="payers") as consumer:
        consumer.subscribe("unwanted", tags="paid")
        for _ in range(100):  # ten seconds: less than the fetch itself is ready to wait
            assert consumer.receive(0.1) is None
            if as_json(broker, "lag", "payers")[0]["lag"] == 0:
                break
        else:
            pytest.fail("the lag stays")


def test_consume_that_wants_nothing_of_what_is_there_ends_soon(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.fetches.PASSED_WAIT_S", 3600.0)
    with Producer(broker.address) as producer:
        producer.send_many([Message("unwanted", b"x", "open")] * 20)
    command = ["consume", "unwanted", "--group", "payers", "--tags", "paid"]
    began_s = broker.clock.monotonic_s()
    result = CliRunner().invoke(cli, [*command, "--connect", broker.address])
    assert (result.exit_code, result.output) == (0, "")
    assert broker.clock.monotonic_s() - began_s < 10, "less than a consumer's fetch waits else"
    assert as_json(broker, "lag", "payers")[0]["lag"] == 0
