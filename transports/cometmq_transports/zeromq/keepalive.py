"""How a connection to a host that vanished is noticed: by the system, not by ZeroMQ's heartbeats.

ZeroMQ 4.3.5 aborts the whole process when it has to send a ping or a pong on a connection that
broke while its messages waited for room (libzmq issues 4364 and 4767): one client killed under
load could take the broker with it, and a broker its slow consumers. So neither end pings; sessions
have heartbeats of their own, and what is left is what TCP can do alone.
"""

from __future__ import annotations

from typing import Final

import zmq

from cometmq_transports.keepalive import COUNT, IDLE_S, INTERVAL_S

KEEPALIVE: Final = {
    zmq.HEARTBEAT_IVL: 0,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: IDLE_S,
    zmq.TCP_KEEPALIVE_INTVL: INTERVAL_S,
    zmq.TCP_KEEPALIVE_CNT: COUNT,
}
"""Socket options."""
