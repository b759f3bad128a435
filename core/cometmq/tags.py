"""The classic tag expression, `A || B` or `*`: one parser for who asks and for who answers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cometmq.errors import Refused

ALL = "*"
_WRONG_OPERATOR = re.compile(r"[&|]+|[,;](?=\s)|(?<=\s)(and|or|not)(?=\s)", re.IGNORECASE)
"""What people write for `||`, or for what a tag expression can't say."""
_UNUSUAL = re.compile(r"[&|,;*\s]")
"""Without one of these a text is a tag that an expression can name."""


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


def check_tag(tag: str) -> None:
    """Raises Refused for the tag of a message that no expression could name, such as `a || b`:
    nobody could subscribe it but together with all others."""
    if not tag or not _UNUSUAL.search(tag):
        return
    if tag != tag.strip():
        why = "an expression does not tell the space around it"
    elif tag == ALL:
        why = "it stands for all tags"
    elif wrong := _WRONG_OPERATOR.search(tag):
        why = f"{wrong[0]!r} would stand between two tags"
    else:
        return
    raise Refused(
        f"tag {tag!r} could not be subscribed ({why}): a tag is one name, as in tag='paid'",
        "BAD_REQUEST",
    )


def tag_expression(tags: Iterable[str] | None) -> str:
    """The one way to write these tags, in the order of the alphabet; `*` for None."""
    return ALL if tags is None else " || ".join(sorted(tags))
