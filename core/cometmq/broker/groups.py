"""Consumer groups at this broker, wired up: claims, coordinator, and what people ask of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from cometmq.broker.catalog import Catalog
from cometmq.broker.claim_operations import ClaimOperations
from cometmq.broker.commits import Commits
from cometmq.broker.coordinator import Coordinator
from cometmq.broker.dispatch import Handler
from cometmq.broker.gate import Gate
from cometmq.broker.group_lag import GroupLag
from cometmq.broker.group_operations import GroupOperations
from cometmq.broker.planning import Planner
from cometmq.broker.sessions import Sessions
from cometmq.broker.tenures import Tenures
from cometmq.broker.ticks import next_tick_s
from cometmq.broker.waits import Waits
from cometmq.environment import Timer
from cometmq.interfaces import Metric
from cometmq.protocol import Operation

if TYPE_CHECKING:
    from cometmq.broker.broker import Broker

TICK_S = 0.2
"""How often silence is looked for: what a dead member's queues wait beyond its timeout."""


class Groups:
    """The parts that serve groups, made for one broker."""

    def __init__(
        self, broker: Broker, sessions: Sessions, catalog: Catalog, gate: Gate, commits: Commits
    ) -> None:
        log, clock, offsets = broker.log, broker.environment.clock, broker.offsets
        self._clock = clock
        self._timer: Timer | None = None
        self._observe: Callable[[], None] = lambda: None
        tenures = Tenures(log, broker.claims, sessions, broker.park, commits.flush)
        strategies = [
            (plugin, strategy)
            for plugin, brought in broker.composition.collect("rebalance_strategies")
            for strategy in brought
        ]
        blame = partial(broker.composition.blame, "rebalance_strategies")
        planner = Planner(broker.topics, tenures, strategies, blame)
        coordinator = Coordinator(sessions, broker.park, gate, tenures, planner)
        default_ms = broker.config.broker.session_timeout_ms

        def timeout_ms_of(group: str, member: str) -> int:
            return coordinator.timeout_ms_of(group, member) or default_ms

        waits = Waits(log)
        lag = GroupLag(log, broker.topics, offsets, tenures, clock)
        claims = ClaimOperations(log, catalog, gate, waits, offsets, tenures, timeout_ms_of)
        operations = GroupOperations(
            log, catalog, gate, waits, offsets, commits, tenures, coordinator, lag
        )
        self.tenures = tenures
        self.coordinator = coordinator
        self._lag = lag
        self.routes: dict[Operation, Handler] = {
            Operation.CLAIM: claims.claim,
            Operation.RELEASE: claims.release,
            Operation.GROUP_HEARTBEAT: coordinator.heartbeat,
            Operation.GROUP_LEAVE: coordinator.leave,
            Operation.GROUP_LIST: operations.list,
            Operation.GROUP_DESCRIBE: operations.describe,
            Operation.GROUP_RESET: operations.reset,
            Operation.GROUP_DELETE: operations.delete,
        }
        tenures.on_change = coordinator.claims_changed
        catalog.on_change = coordinator.topic_changed

    def start(self, epoch: int, observe: Callable[[], None]) -> None:
        """Begin to watch, on the running loop. `observe` gives a stall of the loop back to those
        who could not be heard meanwhile."""
        self._observe = observe
        self.tenures.adopt()
        self.coordinator.begin(epoch)
        self._arm()

    def stop(self) -> None:
        """Watch no more."""
        self.tenures.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def metrics(self) -> Iterator[Metric]:
        """Numbers of all groups."""
        coordinator = self.coordinator
        groups = coordinator.groups.values()
        members = sum(len(group.members) for group in groups)
        hand_overs = coordinator.hand_overs
        yield Metric("groups", "Groups with members.", "gauge", len(groups))
        yield Metric("group_members", "Members of all groups.", "gauge", members)
        yield Metric("claims", "Queues held by members.", "gauge", len(self.tenures.claims))
        yield Metric(
            "rebalances", "Queues given to other members.", "counter", coordinator.rebalances
        )
        yield Metric("hand_overs", "Queues that changed hands.", "counter", hand_overs.count)
        help_text = "From the decision to the new owner's claim, of all hand-overs."
        yield Metric("hand_over_ms", help_text, "counter", hand_overs.total_s * 1000)
        help_text = "The longest hand-over since the start."
        yield Metric("hand_over_max_ms", help_text, "gauge", hand_overs.longest_s * 1000)
        yield from self._lag.metrics()

    def _arm(self) -> None:
        due_s = next_tick_s(self._clock.monotonic_s(), TICK_S)
        self._timer = self._clock.call_at(due_s, self._tick)

    def _tick(self) -> None:
        self._observe()
        self.tenures.tick()
        self.coordinator.tick()
        self._arm()
