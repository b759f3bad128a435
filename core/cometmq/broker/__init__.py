"""The broker: composed of plugins, serving clients from one log."""

from cometmq.broker.broker import Broker

__all__ = ["Broker"]
