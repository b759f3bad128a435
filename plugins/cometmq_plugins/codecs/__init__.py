"""Codecs for clients, each found by its name in the format: entry points `cometmq.codecs`."""
