"""The plugin and its transport: from an address to a listening ROUTER."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import zmq

from cometmq.environment import Environment
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Limits, Listener, Metric, Receiver, Transport
from cometmq_transports.address import (
    Endpoint,
    bind_failure,
    check_socket_file,
    parse,
    resolve,
)
from cometmq_transports.connection_metrics import connection_metrics
from cometmq_transports.zeromq.keepalive import KEEPALIVE
from cometmq_transports.zeromq.listener import RouterListener
from cometmq_transports.zeromq.options import ZeromqOptions


class ZeromqTransport:
    """`tcp://` and `ipc://` over ZeroMQ.

    At most `limits.connections` clients are meant to be served: the receiver refuses the hello of
    one more with a reason; from 64 more on the transport drops new connections without a word, as
    it does with those that say nothing for ten seconds.
    """

    schemes: Sequence[str] = ("tcp", "ipc")

    def __init__(self, options: ZeromqOptions) -> None:
        self._options = options
        self.listeners: weakref.WeakSet[RouterListener] = weakref.WeakSet()

    async def listen(
        self, address: str, receiver: Receiver, limits: Limits, environment: Environment
    ) -> Listener:
        """Bind a ROUTER. Raises ConfigError: which address, why not, what to do."""
        endpoint = parse(address, listening=True)
        if endpoint.scheme == "ipc":
            check_socket_file(address, endpoint.host)
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        try:
            self._set_up(router, endpoint, limits)
            real = _bind(router, address, endpoint)
            listener = RouterListener(router, real, receiver, limits, self._options, environment)
        except BaseException:
            context.destroy(linger=0)
            raise
        listener.start()
        self.listeners.add(listener)
        return listener

    def _set_up(self, router: zmq.Socket[bytes], endpoint: Endpoint, limits: Limits) -> None:
        options = self._options
        settings = {
            zmq.ROUTER_MANDATORY: 1,
            zmq.LINGER: options.linger_ms,
            zmq.SNDHWM: options.hwm,
            zmq.RCVHWM: options.hwm,
            zmq.MAXMSGSIZE: limits.frame_bytes,
            zmq.BACKLOG: options.backlog,
            zmq.HANDSHAKE_IVL: options.handshake_ms,
            **KEEPALIVE,
            zmq.IPV6: int(":" in endpoint.host),
        }
        for option, value in settings.items():
            router.set(option, value)
        router.copy_threshold = 0


def _bind(router: zmq.Socket[bytes], address: str, endpoint: Endpoint) -> str:
    """Bind; returns the address with its real port."""
    try:
        router.bind(resolve(endpoint).text())
    except (OSError, zmq.ZMQError) as error:
        raise bind_failure(address, error.errno, error.strerror) from error
    if endpoint.scheme == "ipc":
        return address
    port = int(router.get_string(zmq.LAST_ENDPOINT).rstrip("\0").rpartition(":")[2])
    return endpoint._replace(port=port).text()


class ZeromqPlugin:
    """Brings `tcp://` and `ipc://` through ZeroMQ's library, in the place of `zmtp`."""

    name = "zeromq"
    options = ZeromqOptions

    def __init__(self, options: ZeromqOptions | None = None) -> None:
        self._transport = ZeromqTransport(options or ZeromqOptions())

    @hookimpl
    def transports(self) -> Sequence[Transport]:
        """The one transport of this plugin."""
        return (self._transport,)

    @hookimpl
    def metrics(self) -> Iterable[Metric]:
        """Open connections, and what was dropped by reason, for each address."""
        return connection_metrics(self.name, self._transport.listeners)
