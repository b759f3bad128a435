"""`tcp://` and `ipc://` through ZeroMQ's library, for who names it in the place of `zmtp`.

`listener` is the broker's end (a ROUTER), `channel` the client's (one DEALER a connection).
"""

from __future__ import annotations

from cometmq.extras import install_extra

try:
    import zmq as zmq
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the transport `zeromq` needs pyzmq, which is not installed: {install_extra('zeromq')}",
        name=error.name,
    ) from error

from cometmq_transports.zeromq.channel import connect
from cometmq_transports.zeromq.options import ZeromqOptions
from cometmq_transports.zeromq.plugin import ZeromqPlugin, ZeromqTransport

__all__ = ["ZeromqOptions", "ZeromqPlugin", "ZeromqTransport", "connect"]
