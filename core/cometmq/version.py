"""The version, in a module of its own: what needs it need not import all that `cometmq` exports."""

__version__ = "0.1.0"
