"""Producer, consumers and admin: a sync face here, an awaitable one in `cometmq.aio`.

From below: `connection` (no socket, no clock) knows requests, hello and reconnects; `engine` adds
a channel, timers and flows; `driver` and `aio_driver` wait; `producing`, `reading`, `grouping`
and `administration` are what both faces share.
"""

from cometmq.client.admin import Admin
from cometmq.client.batching import Receipt, SendResult
from cometmq.client.consumer import PullConsumer
from cometmq.client.group_consumer import Consumer
from cometmq.client.handout import HeldMessage
from cometmq.client.producer import Producer

__all__ = ["Admin", "Consumer", "HeldMessage", "Producer", "PullConsumer", "Receipt", "SendResult"]
