"""The plugin and its transport: from an address to a listener."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from cometmq.environment import Environment
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Limits, Listener, Metric, Receiver, Transport
from cometmq_transports.address import parse
from cometmq_transports.connection_metrics import connection_metrics
from cometmq_transports.zmtp.acceptor import bind
from cometmq_transports.zmtp.listener import ZmtpListener
from cometmq_transports.zmtp.options import ZmtpOptions


class ZmtpTransport:
    """`tcp://` and `ipc://` for ZeroMQ's clients, without ZeroMQ at this end.

    At most `limits.connections` clients are meant to be served: the receiver refuses the hello of
    one more with a reason; from 64 more on the transport drops new connections without a word, as
    it does with those that say nothing for ten seconds.
    """

    schemes: Sequence[str] = ("tcp", "ipc")

    def __init__(self, options: ZmtpOptions) -> None:
        self._options = options
        self.listeners: weakref.WeakSet[ZmtpListener] = weakref.WeakSet()

    async def listen(
        self, address: str, receiver: Receiver, limits: Limits, environment: Environment
    ) -> Listener:
        """Bind and listen. Raises ConfigError: which address, why not, what to do."""
        endpoint = parse(address, listening=True)
        listening = bind(address, endpoint, self._options.backlog)
        if endpoint.scheme == "tcp":
            address = endpoint._replace(port=listening.getsockname()[1]).text()
        listener = ZmtpListener(listening, address, receiver, limits, self._options, environment)
        listener.start()
        self.listeners.add(listener)
        return listener


class ZmtpPlugin:
    """Brings `tcp://` and `ipc://`, the standard transport: ZMTP in the broker's own loop."""

    name = "zmtp"
    options = ZmtpOptions

    def __init__(self, options: ZmtpOptions | None = None) -> None:
        self._transport = ZmtpTransport(options or ZmtpOptions())

    @hookimpl
    def transports(self) -> Sequence[Transport]:
        """The one transport of this plugin."""
        return (self._transport,)

    @hookimpl
    def metrics(self) -> Iterable[Metric]:
        """Open connections, and what was dropped by reason, for each address."""
        return connection_metrics(self.name, self._transport.listeners)
