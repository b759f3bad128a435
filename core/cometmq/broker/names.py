"""Names from outside, in sentences of ours."""

from __future__ import annotations


def shown(text: str) -> str:
    """A name from outside, bounded and harmless in a sentence."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
