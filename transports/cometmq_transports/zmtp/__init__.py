"""ZeroMQ's protocol, ZMTP 3.1, spoken by the broker itself: `tcp://` and `ipc://`.

Clients are those of the `zeromq` transport. From below: `wire` (bytes), `decoder` and `outbox`
(bytes to messages and back, without a socket), `connection`, `acceptor`, `listener`, `plugin`.
"""

from __future__ import annotations

from cometmq_transports.zmtp.options import ZmtpOptions
from cometmq_transports.zmtp.plugin import ZmtpPlugin, ZmtpTransport

__all__ = ["ZmtpOptions", "ZmtpPlugin", "ZmtpTransport"]
