"""The default transport: `tcp://` and `ipc://` over ZeroMQ.

`listener` is the broker's end (a ROUTER), `channel` the client's (one DEALER a connection).
"""

from __future__ import annotations

from cometmq_transports.zeromq.channel import connect
from cometmq_transports.zeromq.options import ZeromqOptions
from cometmq_transports.zeromq.plugin import ZeromqPlugin, ZeromqTransport

__all__ = ["ZeromqOptions", "ZeromqPlugin", "ZeromqTransport", "connect"]
