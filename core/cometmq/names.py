"""What topics and groups may be called: one rule for clients, broker and settings."""

from __future__ import annotations

import re

QUEUES_MAX = 1024
"""Of a topic."""
NAME_PATTERN = r"[A-Za-z0-9_.-]{1,127}"
NAME_RULE = "1 to 127 of the characters A-Z a-z 0-9 _ . -"
"""The pattern in words."""

_NAME = re.compile(NAME_PATTERN)


def is_name(text: str) -> bool:
    """True for a name that a client may give; names with `%` are made by the broker only."""
    return _NAME.fullmatch(text) is not None
