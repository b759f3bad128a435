"""Every hook of CometMQ, grouped by the phase in which it is called.

A plugin is an object with methods marked `@hookimpl`, published under the entry-point group
`cometmq.plugins`. A method may take any subset of a hook's arguments, by name. What hooks return
is described in `interfaces.py` and `group_interfaces.py`. Order: the standard set first, then the
user's plugins as written; `stopping` runs in reverse, so plugins nest.

Hooks marked `_hot` are compiled at start into a plain call chain: they run per batch or per
request and must not block. Those marked `_awaited` may be `async` and are awaited in turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from cometmq.environment import Environment
from cometmq.group_interfaces import Filter, Strategy
from cometmq.interfaces import (
    Answer,
    Delay,
    DiskPressure,
    FlushPolicy,
    Job,
    Metric,
    ParkedFetch,
    Pass,
    PluginOperation,
    Refuse,
    Replace,
    SessionInfo,
    StateView,
    Storage,
    Transport,
)

if TYPE_CHECKING:
    from cometmq.batch import Batch

hookspec = pluggy.HookspecMarker("cometmq")
hookimpl = pluggy.HookimplMarker("cometmq")

F = TypeVar("F", bound=Callable[..., Any])
SLOTS: list[str] = []
"""Hooks that exactly one enabled plugin implements."""
HOT: list[str] = []
"""Hooks that run per batch or per request."""
AWAITED: list[str] = []
"""Hooks whose implementation may be `async`; any other that is gets refused at start."""


def _slot(spec: F) -> F:
    SLOTS.append(spec.__name__)
    return spec


def _hot(spec: F) -> F:
    HOT.append(spec.__name__)
    return spec


def _awaited(spec: F) -> F:
    AWAITED.append(spec.__name__)
    return spec


# --- slots: exactly one enabled plugin implements each; called once at start ------------------


@_slot
@hookspec(firstresult=True)
def storage(environment: Environment, data: str) -> Storage | None:
    """Return where segments live. `data` is the data folder of this broker (absolute path)."""


@_slot
@hookspec(firstresult=True)
def flush_policy() -> FlushPolicy | None:
    """Return what decides when appended bytes are synced."""


# --- contributions: collected from all plugins at start ---------------------------------------


@hookspec
def state_views() -> Sequence[StateView] | None:
    """Return state that is derived from the log and kept in its checkpoints; two of one name are
    an error. Called once, before the log is opened."""


@hookspec
def transports() -> Sequence[Transport] | None:
    """Return the transports that this plugin brings. A plugin that the user names takes its schemes
    from the standard ones; two others for one scheme are an error."""


@hookspec
def jobs() -> Sequence[Job] | None:
    """Return housekeeping to be run by the broker's scheduler."""


@hookspec
def operations() -> Sequence[PluginOperation] | None:
    """Return requests that this plugin answers; two of one number are an error."""


@hookspec
def rebalance_strategies() -> Sequence[Strategy] | None:
    """Return ways to share a group's queues among its members; two of one name are an error. The
    first one of all is the default."""


@hookspec
def filters() -> Sequence[Filter] | None:
    """Return languages that a fetch may say in which messages it wants; the first that knows an
    expression takes it."""


@hookspec
def features() -> Sequence[str] | None:
    """Return names of what clients may rely on while this plugin is enabled; told in hello."""


@hookspec
def metrics() -> Iterable[Metric] | None:
    """Return numbers; called each time somebody asks (`mq info --json`)."""


@hookspec
def status() -> Mapping[str, str] | None:
    """Return lines for people by label; called each time somebody asks (`mq info`)."""


# --- life cycle -------------------------------------------------------------------------------


@_awaited
@hookspec
def started(broker: Any) -> Awaitable[None] | None:
    """The broker listens and serves. `broker` is the running `cometmq.broker.Broker`."""


@_awaited
@hookspec
def stopping(broker: Any) -> Awaitable[None] | None:
    """The broker is about to stop: called in reverse order, all of them, errors collected."""


@hookspec
def disk_pressure(pressure: DiskPressure) -> None:
    """The file system of the log passed a mark, up or down. Called by the plugin that watches."""


# --- session ----------------------------------------------------------------------------------


@hookspec(firstresult=True)
def authenticate(
    client_id: str, credentials: dict[str, str], peer_name: str
) -> str | Refuse | None:
    """Return who this is (the principal), or Refuse; None leaves it to the next plugin. A plugin
    with this hook is what allows listening beyond loopback. Called once a hello."""


@_hot
@hookspec
def authorize(session: SessionInfo, operation: str, resource: str) -> Refuse | None:
    """May the session do this? `operation` is a name of `protocol.Operation`, `resource` a
    topic, a `group:NAME` or empty. Every plugin is asked; the first Refuse is the answer."""


@_hot
@hookspec
def admit(session: SessionInfo, operation: str, size_bytes: int) -> Delay | Refuse | None:
    """May this request of `size_bytes` go on now? None: go; Delay: later; Refuse: no.
    Called once a request, after it was decoded and before anything is done for it."""


# --- message path -----------------------------------------------------------------------------


@_hot
@hookspec
def before_append(session: SessionInfo, batch: Batch) -> Pass | Replace | Refuse | Answer | None:
    """A batch with proven CRC and table is about to be stamped for its queue. None and Pass:
    go on; Replace: go on with other records; Refuse: nothing is stored; Answer: it is in the log
    already. The next plugin sees what the one before returned; the last two end the chain."""


@_hot
@hookspec
def readable_advanced(start: int, end: int, queues: Sequence[tuple[int, int]]) -> None:
    """Batches in [start, end) of the log became readable, in these (incarnation, queue)s."""


@_hot
@hookspec(firstresult=True)
def fetch_wait(fetch: ParkedFetch) -> bool | None:
    """A fetch found nothing. Return True to keep it and answer it later, by `fetch.retry()`
    or `fetch.answer_empty()`; None lets the next plugin, and at last the broker, answer empty."""
