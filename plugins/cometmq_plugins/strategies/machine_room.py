"""Plugin `machine-room`: queues are read in the room where their broker runs, if somebody is there.

Rooms without a member are shared by all members, so nothing stays unread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from cometmq.group_interfaces import Strategy, StrategyMember, StrategyQueue
from cometmq.hookspecs import hookimpl
from cometmq.plugins import Plugin
from cometmq_plugins.strategies.averagely import Averagely


class MachineRoomOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `[plugin.machine-room]`."""

    room: str = ""
    """The room of queues that don't name one: that of this broker."""


class MachineRoom:
    """`averagely` within each room."""

    name = "machine-room"

    def __init__(self, room: str) -> None:
        """`room` is that of queues that don't name one."""
        self._room = room
        self._within = Averagely()

    def assign(
        self, members: Sequence[StrategyMember], queues: Collection[StrategyQueue]
    ) -> Mapping[StrategyQueue, str]:
        """See `Strategy.assign`."""
        rooms: dict[str, list[StrategyMember]] = {}
        for member in members:
            rooms.setdefault(member.room, []).append(member)
        shares: dict[str | None, list[StrategyQueue]] = {}
        for queue in queues:
            room = queue.room or self._room
            # None: all members share what lies where nobody is.
            shares.setdefault(room if room in rooms else None, []).append(queue)
        found: dict[StrategyQueue, str] = {}
        for place, share in shares.items():
            near = members if place is None else rooms[place]
            found.update(self._within.assign(near, share))
        return found


class MachineRoomPlugin(Plugin):
    """Keeps queues in the room where their broker runs."""

    name = "machine-room"
    options = MachineRoomOptions

    def __init__(self, options: MachineRoomOptions) -> None:
        self._options = options

    @hookimpl
    def rebalance_strategies(self) -> Sequence[Strategy]:
        return [MachineRoom(self._options.room)]
