"""What members of groups may say, and how much memory all of them may take: a heartbeat of a few
bytes is kept, and planned for, until its member is gone."""

from __future__ import annotations

from cometmq.broker.filtering import FILTER_MAX
from cometmq.broker.refusals import Rejected
from cometmq.protocol import GroupHeartbeat, Status

PLACE_MAX = 255
"""Characters of a member's room or host."""
FILTERS_MAX = 64 << 10
"""Characters of all filters of a member: whoever joins its group is told them."""
ROOM_BYTES = 256 << 20
_MEMBER_BYTES = 3 << 10
_SUBSCRIPTION_BYTES = 400
_QUEUE_BYTES = 500
"""About what each costs: in what it said, in what it is told, in the plan of its group."""


def check_said(header: GroupHeartbeat) -> None:
    """Raises Rejected for texts that are too long to be kept."""
    lengths = [len(each.filter) for each in header.subscriptions]
    if max(lengths) > FILTER_MAX or sum(lengths) > FILTERS_MAX:
        raise Rejected(
            Status.TOO_LARGE,
            f"filters of {sum(lengths)} characters, the longest has {max(lengths)}: {FILTERS_MAX} "
            f"are allowed, {FILTER_MAX} in each: make them shorter, or let the client filter",
        )
    if max(len(header.room), len(header.host)) > PLACE_MAX:
        raise Rejected(
            Status.TOO_LARGE,
            f"a room of {len(header.room)} characters and a host of {len(header.host)}: at most "
            f"{PLACE_MAX} are allowed",
        )


def cost_bytes(said: GroupHeartbeat, queues: int) -> int:
    """What a member takes that says this, and whose topics have so many queues together."""
    texts = sum(len(each.filter) for each in said.subscriptions)
    return (
        _MEMBER_BYTES
        + _SUBSCRIPTION_BYTES * len(said.subscriptions)
        + _QUEUE_BYTES * queues
        + 2 * texts
    )


class MemberRoom:
    """The memory of all members together."""

    def __init__(self) -> None:
        self.taken_bytes = 0

    def check(self, more_bytes: int) -> None:
        """Raises Rejected if there is no room for so much more."""
        if more_bytes > 0 and self.taken_bytes + more_bytes > ROOM_BYTES:
            raise Rejected(
                Status.LIMIT_REACHED,
                f"the members of all groups take {self.taken_bytes} bytes of this broker's memory, "
                f"{ROOM_BYTES} are allowed: let members leave, or subscribe fewer topics",
            )
