"""What consumers say of bytes that they found damaged.

Such a report is a stranger's word: it may be false, and come a thousand times a second. So it has
to name messages that are there, and a queue is written about once a minute; all are counted.
"""

from __future__ import annotations

import logging

from cometmq.broker.catalog import Catalog
from cometmq.broker.gate import Gate
from cometmq.broker.names import shown
from cometmq.broker.refusals import Rejected
from cometmq.broker.requests import Body, Request
from cometmq.environment import Clock
from cometmq.log import Log
from cometmq.protocol import Empty, ReportDamage, Status

logger = logging.getLogger(__name__)

QUIET_S = 60.0
"""How long a queue that was written about is not written about again."""
TOLD_MAX = 1000
"""Queues that are known to have been written about; of more than that, all are forgotten."""


class DamageReports:
    """The handler of REPORT_DAMAGE."""

    def __init__(self, log: Log, catalog: Catalog, gate: Gate, clock: Clock) -> None:
        self.count = 0
        self._log = log
        self._catalog = catalog
        self._gate = gate
        self._clock = clock
        self._told_s: dict[tuple[int, int], float] = {}

    def report(self, request: Request, header: ReportDamage, body: Body) -> None:
        """Count and log it. Raises Rejected for a place that never had a message."""
        self._gate.check(request.session, "REPORT_DAMAGE", header.topic)
        topic = self._catalog.find_queue(header.topic, header.queue)
        key = topic.incarnation, header.queue
        next_offset = self._log.next_offset(*key)
        if header.offset >= next_offset:
            raise Rejected(
                Status.BAD_REQUEST,
                f"queue {header.queue} of topic {shown(header.topic)} has no offset "
                f"{header.offset}, it ends before {next_offset}: ask for its offsets again",
            )
        self.count += 1
        now_s = self._clock.monotonic_s()
        if now_s >= self._told_s.get(key, now_s - QUIET_S) + QUIET_S:
            if len(self._told_s) >= TOLD_MAX:
                self._told_s.clear()
            self._told_s[key] = now_s
            self._tell(request, header)
        request.answer(Empty())

    def _tell(self, request: Request, header: ReportDamage) -> None:
        logger.error(
            "client %s read damaged bytes at offset %d of queue %d of topic %s (%s); "
            "look at the log with `mq log inspect`",
            request.session.client_id,
            header.offset,
            header.queue,
            shown(header.topic),
            shown(header.detail),
        )
