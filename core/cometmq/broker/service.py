"""What serves requests: sessions, dispatcher and the handlers of all operations, wired up."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cometmq.broker.catalog import Catalog
from cometmq.broker.commits import Commits
from cometmq.broker.damage_reports import DamageReports
from cometmq.broker.dispatch import Dispatcher
from cometmq.broker.fetches import Fetches
from cometmq.broker.filtering import Filters
from cometmq.broker.gate import Gate
from cometmq.broker.groups import Groups
from cometmq.broker.held import Held
from cometmq.broker.offset_operations import OffsetOperations
from cometmq.broker.requests import Body, Request
from cometmq.broker.sends import Sends
from cometmq.broker.sessions import Session, Sessions
from cometmq.broker.topic_operations import TopicOperations
from cometmq.broker.waits import Waits
from cometmq.interfaces import Metric
from cometmq.protocol import (
    PROTOCOL_MAX,
    BrokerInfo,
    Empty,
    Goodbye,
    Heartbeat,
    HelloReply,
    Operation,
)

if TYPE_CHECKING:
    from cometmq.broker.broker import Broker

HEARTBEATS = 3
"""A client sends so many in a session timeout."""


class Service:
    """The parts that a request meets, made for one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        composition, config, log = broker.composition, broker.config, broker.log
        clock, limits, park = broker.environment.clock, config.limits, broker.park
        chain = composition.chain
        gate = Gate(chain("authorize"), chain("admit"))
        self.sessions = Sessions(
            clock, limits, config.broker.session_timeout_ms, chain("authenticate")
        )
        self.commits = Commits(log)
        catalog = Catalog(
            log,
            broker.topics,
            park,
            clock,
            auto_create=config.broker.auto_create,
            default_queues=config.broker.default_queues,
            before_delete=self.commits.flush,
        )
        self.groups = Groups(broker, self.sessions, catalog, gate, self.commits)
        tenures, held = self.groups.tenures, Held(limits.held_bytes)
        self.fetches = Fetches(
            log,
            catalog,
            gate,
            limits,
            clock,
            held,
            tenures,
            Filters(composition.collect("filters"), partial(composition.blame, "filters")),
            chain("fetch_wait"),
            park.drop,
        )
        self.dispatcher = Dispatcher(
            log, self.sessions, gate, clock, limits, held, self._welcome, self.commits.flush
        )
        self.damage_reports = DamageReports(log, catalog, gate, clock)
        self._features = [name for _, names in composition.collect("features") for name in names]
        self._gate = gate
        sends = Sends(log, catalog, gate, park, limits, chain("before_append"))
        topics = TopicOperations(log, catalog, gate, Waits(log), limits)
        offsets = OffsetOperations(log, catalog, gate, broker.offsets, self.commits, tenures)
        self._route(sends, topics, offsets)

    def metrics(self) -> list[Metric]:
        """Counters of what was served."""
        dispatcher = self.dispatcher
        unanswered = self.sessions.total.unanswered_bytes
        return [
            Metric("requests", "Messages received.", "counter", dispatcher.requests),
            Metric("requests_refused", "Answered by an error.", "counter", dispatcher.refused),
            Metric("garbage", "Messages that were none.", "counter", dispatcher.garbage),
            Metric("damage_reports", "From consumers.", "counter", self.damage_reports.count),
            Metric("unanswered_bytes", "Requests held in memory.", "gauge", unanswered),
            *self.groups.metrics(),
        ]

    async def stop(self) -> None:
        """Finish what was begun."""
        self.groups.stop()
        await self.dispatcher.stop()
        await self.fetches.stop()

    def _route(self, sends: Sends, topics: TopicOperations, offsets: OffsetOperations) -> None:
        add = self.dispatcher.add
        add(Operation.HEARTBEAT, self._heartbeat)
        add(Operation.GOODBYE, self._goodbye)
        add(Operation.BROKER_INFO, self._info)
        add(Operation.REPORT_DAMAGE, self.damage_reports.report)
        add(Operation.TOPIC_CREATE, topics.create)
        add(Operation.TOPIC_ALTER, topics.alter)
        add(Operation.TOPIC_DELETE, topics.delete)
        add(Operation.TOPIC_LIST, topics.list)
        add(Operation.TOPIC_DESCRIBE, topics.describe)
        add(Operation.SEND, sends.send)
        add(Operation.FETCH, self.fetches.fetch)
        add(Operation.OFFSETS, offsets.bounds)
        add(Operation.OFFSET_BY_TIME, offsets.by_time)
        add(Operation.COMMIT, offsets.commit)
        add(Operation.COMMITTED, offsets.committed)
        for operation, handle in self.groups.routes.items():
            add(operation, handle)

    def _welcome(self, session: Session) -> HelloReply:
        config, log = self._broker.config, self._broker.log
        timeout_ms = config.broker.session_timeout_ms
        return HelloReply(
            protocol=PROTOCOL_MAX,
            session=session.id,
            broker_name=config.broker.name,
            log_id=log.log_id.hex(),
            epoch=log.epoch,
            session_timeout_ms=timeout_ms,
            heartbeat_ms=max(timeout_ms // HEARTBEATS, 1),
            limits=config.limits,
            default_level=log.default_level,
            auto_create=config.broker.auto_create,
            features=self._features,
            in_doubt=log.in_doubt,
        )

    def _heartbeat(self, request: Request, header: Heartbeat, body: Body) -> None:
        request.answer(Empty())

    def _goodbye(self, request: Request, header: Goodbye, body: Body) -> None:
        request.answer(Empty())
        self.sessions.end_politely(request.session, "said good-bye")

    def _info(self, request: Request, header: BrokerInfo, body: Body) -> None:
        self._gate.check(request.session, "BROKER_INFO", "")
        request.answer(self._broker.info())
