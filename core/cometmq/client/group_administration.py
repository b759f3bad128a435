"""What both faces of the admin client share about groups, as flows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from cometmq.client.arguments import check_fields, check_number
from cometmq.client.engine import Engine
from cometmq.client.offsets import Start, check_start
from cometmq.client.validation import check_name
from cometmq.protocol import (
    Empty,
    GroupDelete,
    GroupDescribe,
    GroupDescription,
    GroupList,
    GroupListing,
    GroupReset,
    GroupResetPart,
    GroupResetReply,
    GroupSummary,
    Operation,
)

S = TypeVar("S", bound=msgspec.Struct)

UNDO = "undo"


class GroupAdministration:
    """Each method is one operation with its own deadline."""

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        check_number("timeout", timeout_s, above=0)
        self.engine = engine
        self._timeout_s = timeout_s

    async def list_groups(self, prefix: str) -> list[GroupSummary]:
        """See `Admin.list_groups`."""
        header = GroupList(prefix)
        reply = await self._ask(Operation.GROUP_LIST, header, GroupListing)
        return reply.groups

    async def describe_group(self, name: str) -> GroupDescription:
        """See `Admin.describe_group`."""
        check_name("group", name)
        return await self._ask(Operation.GROUP_DESCRIBE, GroupDescribe(name), GroupDescription)

    async def reset_group(
        self,
        name: str,
        to: Start,
        topic: str | None,
        queues: Sequence[int],
        dry_run: bool,
        force: bool,
    ) -> list[GroupResetPart]:
        """See `Admin.reset_group`."""
        check_name("group", name)
        if topic is not None:
            check_name("topic", topic)
        goal, value = _goal(to)
        header = GroupReset(name, topic or "", goal, value, list(queues), dry_run, force)
        reply = await self._ask(Operation.GROUP_RESET, header, GroupResetReply)
        return reply.parts

    async def delete_group(self, name: str, force: bool) -> None:
        """See `Admin.delete_group`."""
        check_name("group", name)
        header = GroupDelete(name, force)
        await self._ask(Operation.GROUP_DELETE, header, Empty)

    async def _ask(self, operation: int, header: msgspec.Struct, reply_type: type[S]) -> S:
        """Ask once what is well-formed. Raises Refused for an argument that is not."""
        check_fields(header)
        return await self.engine.ask(operation, header, reply_type, self._deadline_s())

    def _deadline_s(self) -> float:
        return self.engine.now_s() + self._timeout_s


def _goal(to: Start) -> tuple[str, int]:
    """What GROUP_RESET calls a `Start`. Raises Refused."""
    if to == UNDO:
        return UNDO, 0
    check_start(to)
    if isinstance(to, datetime):
        return "time", int(to.timestamp() * 1000)
    if isinstance(to, int):
        return "offset", to
    return to, 0
