"""The classic tag expression, `A || B` or `*`: one parser for who asks and for who answers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cometmq.errors import Refused

ALL = "*"
_WRONG_OPERATOR = re.compile(r"[&|]+|[,;](?=\s)|(?<=\s)(and|or|not)(?=\s)", re.IGNORECASE)
"""What people write for `||`, or for what a tag expression can't say."""


def parse_tags(expression: str) -> frozenset[str] | None:
    """The tags that `expression` names; None when it takes all messages (`*`, or nothing).

    Raises Refused for what is no text, for an empty place, as in `a || || b`, and for another
    operator than `||`, which would match nothing without a word.
    """
    if type(expression) is not str:
        raise Refused(
            f"tags={expression!r}: a text is wanted, as in 'paid || refunded'; all tags are '*'",
            "BAD_REQUEST",
        )
    text = expression.strip()
    if text in ("", ALL):
        return None
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags):
        raise Refused(
            f"tag expression {expression!r}: a tag is missing beside a ||; "
            "tags are written as in 'paid || refunded', all of them as '*'",
            "BAD_REQUEST",
        )
    for tag in tags:
        if wrong := _WRONG_OPERATOR.search(tag):
            raise Refused(
                f"tag expression {expression!r}: {wrong[0]!r} joins no tags; "
                "tags are written as in 'paid || refunded', all of them as '*'",
                "BAD_REQUEST",
            )
    return None if ALL in tags else frozenset(tags)


def tag_expression(tags: Iterable[str] | None) -> str:
    """The one way to write these tags, in the order of the alphabet; `*` for None."""
    return ALL if tags is None else " || ".join(sorted(tags))
