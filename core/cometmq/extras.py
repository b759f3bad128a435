"""Packages that only some need: which extra brings them."""

from __future__ import annotations


def install_extra(extra: str, distribution: str = "cometmq", *, upgrade: bool = False) -> str:
    """What to type, as the end of a sentence."""
    options = "-U " if upgrade else ""
    return (
        f"pip install {options}'.[{extra}]' in a checkout of {distribution}, else "
        f"pip install {options}'{distribution}[{extra}]'"
    )
