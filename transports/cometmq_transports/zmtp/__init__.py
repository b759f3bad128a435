"""ZeroMQ's protocol, ZMTP 3.1, spoken over plain sockets at both ends: `tcp://` and `ipc://`.

Each end also talks to the other one of the `zeromq` transport. From below: `wire` (bytes),
`decoder` and `outbox` (bytes to messages and back, without a socket), `spinning` (when not to
sleep); the client's `calling` and `channel`; the broker's `connection`, `acceptor`, `holdings`,
`listener`, `plugin`.
"""

from __future__ import annotations

from cometmq_transports.zmtp.channel import connect
from cometmq_transports.zmtp.options import ZmtpOptions
from cometmq_transports.zmtp.plugin import ZmtpPlugin, ZmtpTransport

__all__ = ["ZmtpOptions", "ZmtpPlugin", "ZmtpTransport", "connect"]
