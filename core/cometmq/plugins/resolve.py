"""From the names that a user wrote to the plugins that run: bundles, requirements, slots.

The standard set comes first, then what the user named. Of two claimants of a slot the one that
is wanted more directly wins: named by the user, brought in by what the user named, standard.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from cometmq.config import Config
from cometmq.errors import PluginError
from cometmq.hookspecs import SLOTS
from cometmq.plugins.discovery import Catalogue, plugin_error
from cometmq.plugins.plugin import Declaration, declare
from cometmq.plugins.verify import hook_names

STANDARD = "standard"
"""The bundle that everybody gets: the only plugin name that the core knows."""


class Wanted(IntEnum):
    """How directly the user wants a plugin."""

    STANDARD = 0
    BROUGHT = 1
    NAMED = 2


class Member:
    """A plugin of the composition to be."""

    def __init__(self, declaration: Declaration, wanted: Wanted, why: str, standard: bool) -> None:
        self.declaration = declaration
        self.wanted = wanted
        self.why = why
        """For people: `standard set`, `named`, `required by X`, `bundle X`."""
        self.standard = standard
        self.slots = tuple(hook for hook in hook_names(declaration.loaded) if hook in SLOTS)

    @property
    def name(self) -> str:
        return self.declaration.name

    def __str__(self) -> str:
        return str(self.declaration.candidate)


class Resolver:
    """Expands names into members; each plugin is imported once, and only if it is reached."""

    def __init__(self, catalogue: Catalogue, config: Config) -> None:
        self._catalogue = catalogue
        self._enable = config.plugins.enable
        self._disable = config.plugins.disable
        self._named_by = _said(config, "plugins.enable")
        self._declared: dict[str, Declaration] = {}
        self._replaced: dict[str, str] = {}
        """Loser of a slot to a clause that says to whom."""
        self._members: dict[str, Member] = {}
        for name in self._disable:
            catalogue.find(name, _said(config, "plugins.disable"))

    def resolve(self) -> list[Member]:
        """All members, the standard set first, requirements before what requires them; a user's
        order is not applied yet. Raises PluginError."""
        while True:
            self._members = {}
            if STANDARD not in self._disable:
                self._visit(STANDARD, Wanted.STANDARD, "standard set", ())
            for name in self._enable:
                self._visit(name, Wanted.NAMED, "named", ())
            if not self._replace_losers():
                self._check_requirements()
                self._check_slots()
                return list(self._members.values())

    def _visit(self, name: str, wanted: Wanted, why: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            circle = " -> ".join([*trail[trail.index(name) :], name])
            raise PluginError(
                f"plugins require each other in a circle: {circle}; one of them has to drop the "
                "other from `requires` (or `bundle`)"
            )
        if name in self._disable or name in self._replaced:
            return
        member = self._members.get(name)
        if member is not None and member.wanted >= wanted:
            return
        below = Wanted.STANDARD if wanted is Wanted.STANDARD else Wanted.BROUGHT
        declaration = self._declare(name, trail)
        path = (*trail, name)
        for other in declaration.requires:
            because = why if wanted is Wanted.STANDARD else f"required by {name}"
            self._visit(other, below, because, path)
        if member is None:
            standard = wanted is Wanted.STANDARD
            self._members[name] = Member(declaration, wanted, why, standard)
        else:
            member.wanted = wanted
        for other in declaration.bundle:
            because = why if wanted is Wanted.STANDARD else f"bundle {name}"
            self._visit(other, below, because, path)

    def _declare(self, name: str, trail: tuple[str, ...]) -> Declaration:
        if name not in self._declared:
            said_by = (
                f"wanted by {self._declared[trail[-1]].candidate}" if trail else self._named_by
            )
            if name == STANDARD:
                said_by = "the set that every broker starts with"
            self._declared[name] = declare(self._catalogue.find(name, said_by))
        return self._declared[name]

    def _claims(self) -> Iterable[tuple[str, list[Member]]]:
        for slot in SLOTS:
            yield slot, [member for member in self._members.values() if slot in member.slots]

    def _replace_losers(self) -> bool:
        """Note who loses a slot to somebody wanted more directly; True if anybody did."""
        before = len(self._replaced)
        for slot, claimants in self._claims():
            if len(claimants) < 2:
                continue
            best = max(member.wanted for member in claimants)
            winners = [member for member in claimants if member.wanted == best]
            if len(winners) > 1:
                first, second = winners[:2]
                raise PluginError(
                    f"{first} and {second} both claim the slot `{slot}`, which takes one; choose "
                    f"by taking one away: --plugins -{first.name} or --plugins -{second.name}"
                )
            for member in claimants:
                if member is not winners[0]:
                    self._replaced[member.name] = f"{winners[0]} has its slot `{slot}`"
        return len(self._replaced) > before

    def _check_requirements(self) -> None:
        for member in self._members.values():
            for name in member.declaration.requires:
                if name in self._members:
                    continue
                reason = self._replaced.get(name, "it was taken away")
                raise plugin_error(
                    member.declaration.candidate,
                    f"requires `{name}`, which is not enabled ({reason})",
                    f"enable {name}, or take {member.name} out with --plugins -{member.name}",
                )

    def _check_slots(self) -> None:
        for slot, claimants in self._claims():
            if not claimants:
                gone = ", ".join(f"-{name}" for name in self._disable)
                hint = f" (taken away: {gone})" if gone else ""
                raise PluginError(
                    f"no enabled plugin implements the slot `{slot}`{hint}; enable one that does: "
                    "`mq plugins` lists all with their slots"
                )


def _said(config: Config, key: str) -> str:
    """Where the user wrote a name."""
    source = config.source(key)
    return "named in the settings" if source.kind == "default" else f"named by {source}"
