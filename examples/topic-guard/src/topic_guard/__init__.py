"""A CometMQ plugin that guards topics: it refuses, bounds and signs what clients send."""

from topic_guard.guard import TopicGuard, TopicGuardOptions

__all__ = ["TopicGuard", "TopicGuardOptions"]
