"""What topics and groups may be called."""

from __future__ import annotations

import re

QUEUES_MAX = 1024
NAME_RULE = "1 to 127 of the characters A-Z a-z 0-9 _ . -"

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}")


def is_name(text: str) -> bool:
    """True for a name that a client may give; names with `%` are made by the broker only."""
    return _NAME.fullmatch(text) is not None


def shown(text: str) -> str:
    """A name from outside, bounded and harmless in a sentence."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
