"""The plugin that brings `inproc://`."""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.environment import Environment
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Limits, Listener, Receiver, Transport
from cometmq_transports.inproc.listener import InprocListener, publish


class InprocTransport:
    """`inproc://NAME`, for clients in the broker's own process."""

    schemes: Sequence[str] = ("inproc",)

    async def listen(
        self, address: str, receiver: Receiver, limits: Limits, environment: Environment
    ) -> Listener:
        """Publish the name in this process. Raises ConfigError if it is taken or no name."""
        listener = InprocListener(address, receiver, limits)
        publish(listener)
        return listener


class InprocPlugin:
    """Brings `inproc://`: clients in the broker's own process."""

    name = "inproc"

    @hookimpl
    def transports(self) -> Sequence[Transport]:
        """The one transport of this plugin."""
        return (InprocTransport(),)
