"""CometMQ: a durable message broker that a team composes out of plugins."""

__version__ = "0.1.0"
