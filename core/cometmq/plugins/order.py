"""The order of all chains: the user's words are law, `before` and `after` move the rest.

A plugin that the user wrote keeps its place among the others the user wrote. Members of the
standard set, and what was brought in, stay where they are unless a wish moves them.
"""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.errors import PluginError
from cometmq.plugins.resolve import Member

Edge = tuple[str, str]
"""(earlier, later)."""


def in_order(members: Sequence[Member], written: Sequence[str]) -> list[Member]:
    """`members` with the wishes applied; `written` is the user's order. Raises PluginError: a
    written order that breaks a wish (naming both), or wishes that contradict each other."""
    by_name = {member.name: member for member in members}
    chain = [name for name in written if name in by_name and not by_name[name].standard]
    wishes = _wishes(by_name)
    _check_written(chain, wishes, by_name)
    edges = wishes | {(one, two): "as written" for one, two in zip(chain, chain[1:], strict=False)}
    return [by_name[name] for name in _sorted([member.name for member in members], edges)]


def _wishes(by_name: dict[str, Member]) -> dict[Edge, str]:
    """Every wish about a plugin that is enabled, and whose wish it is."""
    wishes: dict[Edge, str] = {}
    for member in by_name.values():
        said = f"says {member}"
        for other in member.declaration.before:
            if other in by_name:
                wishes[member.name, other] = said
        for other in member.declaration.after:
            if other in by_name:
                wishes[other, member.name] = said
    return wishes


def _check_written(chain: list[str], wishes: dict[Edge, str], by_name: dict[str, Member]) -> None:
    place = {name: index for index, name in enumerate(chain)}
    for (earlier, later), said in wishes.items():
        if earlier in place and later in place and place[earlier] > place[later]:
            raise PluginError(
                f"{by_name[later]} is written before {by_name[earlier]}, but `{earlier}` must "
                f"stand before `{later}` ({said}); write {earlier},{later}"
            )


def _sorted(names: list[str], edges: dict[Edge, str]) -> list[str]:
    """Topological, and of all that may come next always the first of `names`."""
    left, result = list(names), []
    while left:
        waiting = {later for earlier, later in edges if earlier in left and later in left}
        ready = [name for name in left if name not in waiting]
        if not ready:
            raise _circle(left, edges)
        result.append(ready[0])
        left.remove(ready[0])
    return result


def _circle(left: list[str], edges: dict[Edge, str]) -> PluginError:
    """Walk backwards from anywhere: all that is left waits for something that is left."""
    walk = [left[0]]
    while walk.count(walk[-1]) == 1:
        walk.append(next(one for one, two in edges if two == walk[-1] and one in left))
    circle = walk[walk.index(walk[-1]) :][::-1]
    steps = [
        f"`{one}` before `{two}` ({edges[one, two]})"
        for one, two in zip(circle, circle[1:], strict=False)
    ]
    return PluginError(
        f"the order of plugins is a circle: {', '.join(steps)}; change the order in which they "
        "are written, or take one of them away"
    )
