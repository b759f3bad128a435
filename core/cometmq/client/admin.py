"""The admin client, sync face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from cometmq.client.administration import Administration
from cometmq.client.driver import Driver
from cometmq.client.faces import Face, make_engine
from cometmq.client.offsets import Start
from cometmq.environment import Environment
from cometmq.interfaces import Connect
from cometmq.protocol import (
    BrokerInfoReply,
    GroupDescription,
    GroupResetPart,
    GroupSummary,
    OffsetsPart,
    Retention,
    TopicDescription,
    TopicInfo,
)

S = TypeVar("S", bound=msgspec.Struct)


class Admin(Face):
    """Topics, offsets and health of a broker.

    Every method waits up to `timeout` seconds and raises Refused, Retryable, Closed and, where it
    changes something, OutcomeUnknown: the change may have been made, look before repeating it.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout: float = 30.0,
        client_id: str | None = None,
        credentials: dict[str, str] | None = None,
        environment: Environment | None = None,
        connect: Connect | None = None,
    ) -> None:
        engine = make_engine(address, client_id, credentials, environment, connect)
        self._flows = Administration(engine, timeout)
        self._driver = Driver(engine, self.close)

    def create_topic(
        self, name: str, queues: int = 4, readable: bool = True, writable: bool = True
    ) -> TopicDescription:
        """Create a topic with so many queues."""
        return self._driver.run(self._flows.create_topic(name, queues, readable, writable))

    def alter_topic(
        self,
        name: str,
        queues: int | None = None,
        readable: bool | None = None,
        writable: bool | None = None,
        retention: Retention | None = None,
    ) -> TopicDescription:
        """Change what is given; the number of queues may only grow, a retention is replaced as a
        whole."""
        return self._driver.run(
            self._flows.alter_topic(name, queues, readable, writable, retention)
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its messages and what groups committed of it."""
        self._driver.run(self._flows.delete_topic(name))

    def list_topics(self, prefix: str = "") -> list[TopicInfo]:
        """All topics whose name begins with `prefix`."""
        return self._driver.run(self._flows.list_topics(prefix))

    def describe_topic(self, name: str, usage: bool = False) -> TopicDescription:
        """A topic and the bounds of each of its queues; with `usage` also its bytes and the time of
        its oldest message, which may have to be added up first."""
        return self._driver.run(self._flows.describe_topic(name, usage))

    def broker_info(self) -> BrokerInfoReply:
        """What the broker says of itself: positions, storage, plugins, health."""
        return self._driver.run(self._flows.broker_info())

    def offsets(self, topic: str) -> dict[int, OffsetsPart]:
        """Min and max offset by queue, with the epoch valid for the max."""
        return self._driver.run(self._flows.offsets(topic))

    def committed(self, group: str, topic: str) -> dict[int, int | None]:
        """What a group has committed by queue: the next offset to read, or None."""
        return self._driver.run(self._flows.committed(group, topic))

    def reset_offsets(
        self, group: str, topic: str, to: Start, queue: int | None = None
    ) -> dict[int, int]:
        """Commit for a group, in one queue or in all: "earliest", "latest", an offset, or a
        datetime (the first message stored since then). Returns the offsets by queue."""
        return self._driver.run(self._flows.reset_offsets(group, topic, to, queue))

    def list_groups(self, prefix: str = "") -> list[GroupSummary]:
        """All groups whose name begins with `prefix`: members, topics, and messages to read."""
        return self._driver.run(self._flows.list_groups(prefix))

    def describe_group(self, name: str) -> GroupDescription:
        """Members of a group and their advice; every queue with its committed offset, its owner,
        and how far the group is behind."""
        return self._driver.run(self._flows.describe_group(name))

    def reset_group(
        self,
        name: str,
        to: Start,
        topic: str | None = None,
        queues: Sequence[int] = (),
        dry_run: bool = False,
        force: bool = False,
    ) -> list[GroupResetPart]:
        """Move a group in all its topics, or in one of them or some of its queues: "earliest",
        "latest", an offset (within what is there), a datetime, or "undo" for the last reset.
        Refused while members are active, unless `force` takes these queues away from them. Returns
        old and new offset by queue; with `dry_run` nothing is moved."""
        flow = self._flows.reset_group(name, to, topic, queues, dry_run, force)
        return self._driver.run(flow)

    def delete_group(self, name: str, force: bool = False) -> None:
        """Forget a group and all that it committed. Refused while members are active, unless
        `force`."""
        self._driver.run(self._flows.delete_group(name, force))

    def call(self, operation: int, header: msgspec.Struct, reply_type: type[S]) -> S:
        """Ask for an operation that a plugin of the broker brings: its number, its request, and the
        struct of its reply. Raises NotAvailable if no plugin there has it."""
        return self._driver.run(self._flows.call(operation, header, reply_type))

    def close(self) -> None:
        """End the connection."""
        self._driver.close()
