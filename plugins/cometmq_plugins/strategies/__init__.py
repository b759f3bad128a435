"""Rebalance strategies, a plugin each: how the queues of a group are shared among its members."""
