"""Producer, consumers and admin: a sync face here, an awaitable one in `cometmq.aio`.

From below: `connection` (no socket, no clock) knows requests, hello and reconnects; `engine` adds
a channel, timers and flows; `driver` and `aio_driver` wait; `producing`, `reading`, `grouping`
and `administration` are what both faces share. A lone send takes a shorter way through them:
`lone`, called by `Driver.run_lone`.

A `Consumer`, from above: `grouping` is one member of one group, for both faces. It knows who it is
by `clustering` (`membership`: heartbeats and advice; `claiming`: which queues are ours, by token)
or `broadcasting`; `dispatch` hands out what it reads, by `lane` (one queue), `runs` (messages in
somebody's hands) and `listeners` (who wants what); `handout` is for iteration, `commits` tells the
broker how far it is.
"""

from cometmq.client.admin import Admin
from cometmq.client.batching import Receipt, SendResult
from cometmq.client.consumer import PullConsumer
from cometmq.client.group_consumer import Consumer
from cometmq.client.handout import HeldMessage
from cometmq.client.producer import Producer

__all__ = ["Admin", "Consumer", "HeldMessage", "Producer", "PullConsumer", "Receipt", "SendResult"]
