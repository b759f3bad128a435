"""The peers: each an adapter of the same form, see base.py."""

from __future__ import annotations

from benchmarks.peers.base import Peer
from benchmarks.peers.cometmq import CometMQ
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats import Nats
from benchmarks.peers.rabbit_quorum import RabbitQuorum
from benchmarks.peers.rabbit_streams import RabbitStreams
from benchmarks.peers.redis_streams import Redis
from benchmarks.peers.rocketmq import RocketMQ

PEERS: tuple[Peer, ...] = (
    CometMQ(),
    Kafka(),
    Redis(),
    Nats(),
    RabbitStreams(),
    RabbitQuorum(),
    RocketMQ(),
)


def peer_named(name: str) -> Peer:
    """The peer of that name; raises ValueError that lists them all."""
    for peer in PEERS:
        if peer.name == name:
            return peer
    raise ValueError(f"no peer is called {name}; there are {', '.join(p.name for p in PEERS)}")
