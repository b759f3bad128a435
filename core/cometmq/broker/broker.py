"""The broker: what is composed into one, how it starts, and how it ends."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from cometmq.broker import malloc
from cometmq.broker.claims import Claims
from cometmq.broker.info import (
    banner_lines,
    metric_values,
    plugin_metrics,
    plugin_rows,
    recovery_lines,
    status_lines,
)
from cometmq.broker.jobs import Jobs
from cometmq.broker.loop_lag import LoopLag
from cometmq.broker.loop_pulse import LoopPulse
from cometmq.broker.offsets import CommittedOffsets
from cometmq.broker.park import Park
from cometmq.broker.preflight import preflight
from cometmq.broker.service import Service
from cometmq.broker.topics import Topics
from cometmq.broker.views import contributed_views
from cometmq.broker.watchdog import Watchdog
from cometmq.config import Config
from cometmq.environment import Environment
from cometmq.errors import CometError, ConfigError, LogStopped, PluginError
from cometmq.interfaces import Job, Listener, Metric, Transport
from cometmq.log import Log, LogSettings, RecoveryReport
from cometmq.plugins import Composition
from cometmq.protocol import BrokerInfoReply
from cometmq.version import __version__

logger = logging.getLogger(__name__)

STARTING = "the broker is starting: try again in a moment"


class Broker:
    """A running broker. All methods belong to the loop that `start` ran on.

    `park` and `log` are there once `start` has begun to serve; plugins may use both.
    """

    log: Log
    park: Park

    def __init__(self, config: Config, environment: Environment, composition: Composition) -> None:
        self.config = config
        self.environment = environment
        self.composition = composition
        self.topics = Topics()
        self.offsets = CommittedOffsets()
        self.claims = Claims()
        self.report = RecoveryReport(epoch=0)
        """What the start found in the log; empty before."""
        self.data = os.path.abspath(config.broker.data)
        self._listeners: list[Listener] = []
        self._service: Service | None = None
        self._jobs = Jobs(environment)
        self._lag: LoopLag | None = None
        self._watchdog: Watchdog | None = None
        self._failure: asyncio.Future[CometError] | None = None
        self._started_s = 0.0
        self._log_open = False

    @property
    def addresses(self) -> list[str]:
        """Where it listens, with real ports."""
        return [listener.address for listener in self._listeners]

    async def start(self) -> None:
        """Open the log, recover, listen. Raises ConfigError, PluginError, LogError; then nothing
        is left running."""
        try:
            await self._start()
        except BaseException:
            await self._run_steps(self._stop_steps())
            raise

    async def stop(self) -> None:
        """A clean stop: what was accepted is on disk and answered. Raises an ExceptionGroup of
        what failed on the way; all else was done."""
        errors = await self._run_steps(
            [
                self._refuse_requests,
                lambda: self.composition.call_all_reversed("stopping", broker=self),
                *self._stop_steps(),
            ]
        )
        if errors:
            raise ExceptionGroup("the broker stopped, but not all of it cleanly", errors)

    async def failed(self) -> None:
        """Wait until the broker can't go on, and raise why."""
        assert self._failure is not None, "the broker is not started; await start() first"
        raise await asyncio.shield(self._failure)

    def fail(self, error: CometError) -> None:
        """The broker can't go on: refuse requests and tell whoever awaits `failed`."""
        if self._failure is None or self._failure.done():
            return
        logger.critical("the broker stops: %s", error)
        self._failure.set_result(error)
        if self._service is not None:
            self._service.dispatcher.unready = f"the broker stops: {error}"

    def banner(self) -> list[str]:
        """Lines for people at the start."""
        return banner_lines(
            self.config.broker.name,
            self.addresses,
            self.data,
            self.log.persistent,
            self.composition,
            self.log.default_level,
            self.log.could_lose(),
            self.report,
        )

    def info(self) -> BrokerInfoReply:
        """The reply to BROKER_INFO."""
        log, service = self.log, self._service
        stats = log.stats()
        return BrokerInfoReply(
            name=self.config.broker.name,
            version=__version__,
            node=log.node,
            log_id=log.log_id.hex(),
            epoch=log.epoch,
            uptime_s=self.environment.clock.monotonic_s() - self._started_s,
            addresses=self.addresses,
            default_level=log.default_level,
            positions=log.positions(),
            storage=stats,
            segments=stats["segments"],
            topics=len(self.topics),
            sessions=0 if service is None else len(service.sessions),
            parked=len(self.park),
            in_doubt=log.in_doubt,
            could_lose=log.could_lose(),
            plugins=plugin_rows(self.composition),
            metrics=metric_values(self._metrics()),
            status=status_lines(self.composition),
            data=self.data if log.persistent else "",
        )

    # --- start --------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._failure = asyncio.get_running_loop().create_future()
        self._started_s = self.environment.clock.monotonic_s()
        chosen = preflight(self.config, self.composition)
        if self.config.broker.malloc_tuning:
            malloc.tune()
        await self._open_log(lambda: self._listen(chosen))
        assert self._service is not None, "an open log has been understood"
        self._start_housekeeping(self._service)
        if self._service.dispatcher.unready == STARTING:
            self._service.dispatcher.unready = ""
        await self.composition.call_each("started", broker=self)

    async def _listen(self, chosen: Sequence[tuple[str, Transport]]) -> None:
        """Bind, and tell who comes that it is too early. Before anything is written, so that a
        start that fails here leaves no epoch behind."""
        service = self._service = Service(self)
        service.dispatcher.unready = STARTING
        for plugin, contributed in self.composition.collect("operations"):
            blame = partial(self.composition.blame, "operations", plugin)
            for operation in contributed:
                service.dispatcher.add_contributed(operation, blame)
        for address, transport in chosen:
            listening = transport.listen(
                address, service.dispatcher, self.config.limits, self.environment
            )
            listener = await self.composition.named(f"the listening at {address}", listening)
            self._listeners.append(listener)

    async def _open_log(self, understood: Callable[[], Awaitable[None]]) -> None:
        settings = self.config.log
        self.log = Log(
            self.composition.slot("storage", environment=self.environment, data=self.data),
            self.composition.slot("flush_policy"),
            self.environment,
            views=[self.topics, self.offsets, self.claims, *contributed_views(self.composition)],
            settings=LogSettings(
                segment_bytes=settings.segment_bytes,
                segment_batches=settings.segment_batches,
                segment_age_s=settings.segment_age_s,
                max_unsynced_bytes=settings.max_unsynced_bytes,
                mark_idle_ms=settings.mark_idle_ms,
                drop_state=settings.drop_state,
                level=self.config.broker.level,
            ),
        )
        self.park = Park(self.environment.clock, self.config.limits.parked)
        self.report = await self.log.open(understood)
        for line in recovery_lines(self.report):
            logger.warning("%s", line)
        self._log_open = True
        (flusher,) = self.composition.implementers("flush_policy")
        self.log.on_policy_failure(partial(self.composition.blame, "flush_policy", flusher))
        whose = f"the end of the flush policy of plugin {flusher}"
        self.log.on_policy_end(partial(self.composition.named, whose))
        self.log.on_stopped(lambda reason: self.fail(LogStopped(reason)))
        self.log.on_truncated(lambda position: self.park.fire_all())
        advanced = self.composition.chain("readable_advanced")
        if advanced:
            self.log.on_readable(partial(_tell, advanced))
        # From now on it stays in memory: where there are older ones no more, min offsets are told
        # without waiting for the disk.
        await self.log.when_loaded(lambda: self.log.min_offset(0, 0))

    def _start_housekeeping(self, service: Service) -> None:
        sessions = service.sessions
        pulse = LoopPulse()
        lag = self._lag = LoopLag(self.environment.clock, sessions.stalled, pulse.beat)
        lag.start()
        sessions.observe = lag.observe
        service.groups.start(self.log.epoch, lag.observe)
        sweep_s = self.config.broker.session_timeout_ms / 4000
        self._jobs.add(Job("session-sweep", sessions.sweep, interval_s=sweep_s))
        for plugin, contributed in self.composition.collect("jobs"):
            self._add_jobs(plugin, contributed)
        self._jobs.start()
        loop = asyncio.get_running_loop()
        self._watchdog = Watchdog(
            pulse,
            self.environment.threads,
            lambda: self.composition.running,
            lambda reason: self._hung(loop, reason),
            self.config.broker.loop_stall_limit_ms,
        )
        self._watchdog.start()

    def _add_jobs(self, plugin: str, jobs: Sequence[Job]) -> None:
        for job in jobs:
            try:
                self._jobs.add(job)
            except ConfigError as error:
                raise PluginError(
                    f"plugin {plugin} brings a job that can't run: {error}, or take the plugin "
                    f"out with --plugins -{plugin}"
                ) from error

    def _hung(self, loop: asyncio.AbstractEventLoop, reason: str) -> None:
        """In the watchdog's thread. The stop follows as soon as the loop comes back."""
        limit_ms = self.config.broker.loop_stall_limit_ms
        error = CometError(
            f"its event loop stood still for longer than broker.loop_stall_limit_ms ({limit_ms}): "
            f"{reason}"
        )
        logger.critical("the broker stops: %s", error)
        loop.call_soon_threadsafe(self.fail, error)

    def _metrics(self) -> list[Metric]:
        found: list[Metric] = []
        if self._lag is not None:
            for name, percent in (("loop_lag_p999_ms", 99.9), ("loop_lag_max_ms", 100.0)):
                help_text = "How late the event loop ran, in the last ten minutes."
                found.append(Metric(name, help_text, "gauge", self._lag.percentile_ms(percent)))
        if self._service is not None:
            found.extend(self._service.metrics())
        for job, errors in self._jobs.errors.items():
            runs = self._jobs.runs[job]
            found.append(Metric("job_runs", "Finished runs.", "counter", runs, {"job": job}))
            found.append(Metric("job_errors", "Failed runs.", "counter", errors, {"job": job}))
        for _, metrics in self.composition.collect_sound("metrics"):
            found.extend(metrics)
        return [*found, *plugin_metrics(self.composition)]

    # --- stop ---------------------------------------------------------------------------------

    def _refuse_requests(self) -> None:
        if self._service is not None:
            self._service.dispatcher.unready = "the broker is stopping: try again when it is back"

    def _stop_steps(self) -> list[Callable[[], Any]]:
        """In this order: replies are flushed last, when the log has said its last word."""
        return [
            self._stop_housekeeping,
            self._stop_service,
            self._close_log,
            self._close_listeners,
        ]

    def _stop_housekeeping(self) -> None:
        self._jobs.stop()
        if self._lag is not None:
            self._lag.stop()
        if self._watchdog is not None:
            self._watchdog.stop()

    async def _stop_service(self) -> None:
        if self._service is not None:
            self.park.close()
            await self.composition.named("what operations began", self._service.stop())

    async def _close_log(self) -> None:
        if self._log_open:
            self._log_open = False
            await self.log.close()

    async def _close_listeners(self) -> None:
        listeners, self._listeners = self._listeners, []
        await self._run_steps([partial(self._close_listener, each) for each in listeners])

    async def _close_listener(self, listener: Listener) -> None:
        await self.composition.named(f"the end of {listener.address}", listener.close())

    async def _run_steps(self, steps: Sequence[Callable[[], Any]]) -> list[Exception]:
        """Do all of them, whatever fails; returns what failed."""
        errors: list[Exception] = []
        for step in steps:
            try:
                result = step()
                if inspect.isawaitable(result):
                    await result
            except Exception as error:
                logger.error("stopping: %s", error, exc_info=error)
                errors.append(error)
        return errors


def _tell(
    advanced: Sequence[Callable[..., Any]], start: int, end: int, queues: set[tuple[int, int]]
) -> None:
    """A plugin that fails here must not keep the log from moving on."""
    told = tuple(queues)
    for hook in advanced:
        try:
            hook(start, end, told)
        except CometError as error:
            logger.error("readable_advanced: %s", error, exc_info=error)
