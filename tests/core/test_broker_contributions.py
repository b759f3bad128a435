"""Operations, status lines and commands that plugins bring."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType
from typing import Any

import click
import msgspec
import pytest

from cometmq.cli import LazyGroup
from cometmq.client.admin import Admin
from cometmq.errors import NotAvailable, PluginError, Refused, Retryable
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import PluginOperation, Refuse, SessionInfo
from cometmq.testing.embedded import EmbeddedBroker

NUMBER = 1999


class Ask(msgspec.Struct, array_like=True):
    what: str


class Told(msgspec.Struct, array_like=True):
    text: str


class Oracle:
    """Answers at once, later, or not as hoped."""

    name = "oracle"

    def __init__(self, number: int = NUMBER) -> None:
        self.number = number

    def answer(self, session: SessionInfo, header: Ask) -> Any:
        match header.what:
            case "now":
                return Told(f"now, {session.client_id}")
            case "later":
                return self.later()
            case "refused":
                raise Refused("ask something else", "LIMIT_REACHED")
            case "busy":
                raise Retryable("ask again", 60_000)
        raise RuntimeError("no such question")

    async def later(self) -> Told:
        await asyncio.sleep(0)
        return Told("later")

    @hookimpl
    def operations(self) -> Sequence[PluginOperation]:
        return [PluginOperation(self.number, "ORACLE_ASK", Ask, self.answer)]

    @hookimpl
    def status(self) -> Mapping[str, str]:
        return {"oracle": "awake"}

    @hookimpl
    def authorize(self, operation: str, resource: str) -> Refuse | None:
        if operation == "TOPIC_LIST":
            return Refuse("no lists")
        assert operation != "ORACLE_ASK" or resource == ""
        return None


def test_a_plugins_operation_is_answered_at_once_or_later() -> None:
    with (
        EmbeddedBroker(extra_plugins={"oracle": Oracle}) as broker,
        Admin(broker.address, client_id="me") as admin,
    ):
        assert admin.call(NUMBER, Ask("now"), Told) == Told("now, me")
        assert admin.call(NUMBER, Ask("later"), Told) == Told("later")
        assert admin.broker_info().status["oracle"] == "awake"


def test_a_plugins_operation_says_no_in_its_own_words() -> None:
    with (
        EmbeddedBroker(extra_plugins={"oracle": Oracle}) as broker,
        Admin(broker.address, timeout=5) as admin,
    ):
        with pytest.raises(Refused, match="ask something else") as refused:
            admin.call(NUMBER, Ask("refused"), Told)
        assert refused.value.code == "LIMIT_REACHED"
        with pytest.raises(Retryable, match="ask again"):
            admin.call(NUMBER, Ask("busy"), Told)
        with pytest.raises(Refused, match=r"oracle.* failed in hook `operations`: Runt"):
            admin.call(NUMBER, Ask("?"), Told)
        with pytest.raises(NotAvailable, match="operation 1998 is not known here"):
            admin.call(NUMBER - 1, Ask("now"), Told)


class Undecodable(msgspec.Struct):
    """Of two kinds of arrays msgspec can't tell which one it sees."""

    either: list[int] | tuple[int, ...]


def test_a_header_that_it_cant_have_is_an_error_at_start() -> None:
    class Second(Oracle):
        name = "second"

        @hookimpl
        def operations(self) -> Sequence[PluginOperation]:
            return [PluginOperation(NUMBER, "SECOND_ASK", Undecodable, self.answer)]

    broker = EmbeddedBroker(extra_plugins={"second": Second})
    with pytest.raises(PluginError, match="SECOND_ASK can't have the header Undecodable"):
        broker.start()


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(999, "999, which is below 1000"), (NUMBER, "1999, which is ORACLE_ASK's")],
)
def test_a_number_that_it_cant_have_is_an_error_at_start(number: int, sentence: str) -> None:
    class Second(Oracle):
        name = "second"

        @hookimpl
        def operations(self) -> Sequence[PluginOperation]:
            return [PluginOperation(number, "SECOND_ASK", Ask, self.answer)]

    broker = EmbeddedBroker(extra_plugins={"oracle": Oracle, "second": Second})
    with pytest.raises(PluginError, match=f"SECOND_ASK can't have the number {sentence}"):
        broker.start()


@click.command()
def moon() -> None:
    """Says what the moon does."""


def test_commands_of_plugins_are_found_by_their_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [
        EntryPoint("moon", "moon_commands:moon", "cometmq.commands"),
        EntryPoint("run", "moon_commands:moon", "cometmq.commands"),
    ]
    monkeypatch.setattr("cometmq.cli.entry_points", lambda group: EntryPoints(entries))
    module = ModuleType("moon_commands")
    setattr(module, "moon", moon)  # noqa: B010
    monkeypatch.setitem(sys.modules, "moon_commands", module)
    group = LazyGroup()
    context = click.Context(group)
    assert group.list_commands(context)[-1] == "moon"
    assert group.get_command(context, "moon") is moon
    assert group.get_command(context, "run") is not moon, "the core's own names are its own"
    assert group.get_command(context, "sun") is None
