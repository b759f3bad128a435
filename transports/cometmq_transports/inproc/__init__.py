"""A transport inside one process: `inproc://NAME`, without sockets.

The broker's event loop on one side; on the other client threads, or the same loop. For tests,
for brokers embedded in an application, for simulations. It keeps the limits and tells the events
that the others do. Frames travel by reference: a buffer that was sent must not be changed
afterwards, neither by its sender nor by its receiver.
"""

from __future__ import annotations

from cometmq_transports.inproc.listener import connect
from cometmq_transports.inproc.plugin import InprocPlugin, InprocTransport

__all__ = ["InprocPlugin", "InprocTransport", "connect"]
