"""Which plugins a composition has, in which order, with which options."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.config import Config, load_config
from cometmq.errors import PluginError
from cometmq.hookspecs import hookimpl
from cometmq.plugins import Composition, Plugin, compose


class Disk(Plugin):
    name = "disk"

    @hookimpl
    def storage(self) -> str:
        return "disk"


class Ram(Plugin):
    name = "ram"

    @hookimpl
    def storage(self) -> str:
        return "ram"


class Tape(Plugin):
    name = "tape"

    @hookimpl
    def storage(self) -> str:
        return "tape"


class Flush(Plugin):
    name = "flush"

    @hookimpl
    def flush_policy(self) -> str:
        return "flush"


class Poll(Plugin):
    name = "poll"


class Standard(Plugin):
    name = "standard"
    bundle = ("disk", "flush", "poll")


BASE: list[type[Plugin]] = [Standard, Disk, Ram, Tape, Flush, Poll]


def plain(name: str, **relations: Sequence[str]) -> type[Plugin]:
    """A plugin that does nothing, with the given requires/before/after/bundle."""
    return type(name, (Plugin,), {"name": name, **{k: tuple(v) for k, v in relations.items()}})


def composed(plugins: str = "", *more: type[Plugin], **settings: object) -> Composition:
    """`mq run --plugins PLUGINS` where the base set and `more` are installed."""
    config = load_config(None, {}, {"plugins": plugins, **settings})
    classes = {kind.name: kind for kind in (*BASE, *more)}
    return compose(config, extra_plugins=classes, entry_points=())


def names(composition: Composition) -> list[str]:
    return [plugin.name for plugin in composition.plugins]


def mistake(plugins: str, *more: type[Plugin]) -> str:
    with pytest.raises(PluginError) as caught:
        composed(plugins, *more)
    return str(caught.value)


# --- names ----------------------------------------------------------------------------------


def test_the_standard_set_comes_first_and_the_users_as_written() -> None:
    a, b = plain("a"), plain("b")
    assert names(composed("b,a", a, b)) == ["standard", "disk", "flush", "poll", "b", "a"]


def test_a_minus_takes_a_member_away() -> None:
    assert names(composed("-poll")) == ["standard", "disk", "flush"]


def test_naming_a_member_again_is_no_error_and_moves_nothing() -> None:
    assert names(composed("a,poll", plain("a"))) == ["standard", "disk", "flush", "poll", "a"]


def test_the_whole_standard_set_may_be_taken_away() -> None:
    assert names(composed("-standard,flush,disk")) == ["flush", "disk"]


def test_a_bundle_brings_its_members_and_each_may_be_taken_away() -> None:
    bundle, a, b = plain("both", bundle=("a", "b")), plain("a"), plain("b")
    assert names(composed("both", bundle, a, b))[-3:] == ["both", "a", "b"]
    assert names(composed("both,-a", bundle, a, b))[-2:] == ["both", "b"]


def test_a_requirement_is_enabled_and_stands_before_who_requires_it() -> None:
    a, b = plain("a", requires=("b",)), plain("b")
    composition = composed("a", a, b)
    assert names(composition)[-2:] == ["b", "a"]
    assert [plugin.source for plugin in composition.plugins][-2:] == ["required by a", "named"]


def test_a_requirement_that_is_written_too_stays_where_it_is_written() -> None:
    a, b = plain("a", requires=("b",)), plain("b")
    assert names(composed("a,b", a, b))[-2:] == ["a", "b"]


def test_an_unknown_name_offers_close_ones() -> None:
    assert mistake("pol").startswith(
        "there is no plugin `pol` (named by command line); did you mean poll?"
    )
    assert mistake("-pol").startswith("there is no plugin `pol` (named by command line)")
    assert mistake("a", plain("a", requires=("polll",))).startswith(
        "there is no plugin `polll` (wanted by plugin `a` (given directly)); did you mean poll?"
    )


def test_an_unknown_name_that_resembles_nothing_gets_the_list() -> None:
    assert "known are: disk, flush, poll, ram, standard, tape." in mistake("xyz")


def test_a_requirement_that_was_taken_away_is_an_error() -> None:
    assert mistake("a,-poll", plain("a", requires=("poll",))) == (
        "plugin `a` (given directly) requires `poll`, which is not enabled (it was taken away); "
        "enable poll, or take a out with --plugins -a"
    )


def test_requirements_in_a_circle_are_an_error() -> None:
    a, b = plain("a", requires=("b",)), plain("b", requires=("a",))
    assert mistake("a", a, b).startswith("plugins require each other in a circle: a -> b -> a;")


# --- slots ----------------------------------------------------------------------------------


def test_a_named_claimant_replaces_the_standard_one() -> None:
    composition = composed("ram")
    assert names(composition) == ["standard", "flush", "poll", "ram"]
    assert composition.implementers("storage") == ("ram",)


def test_a_required_claimant_replaces_the_standard_one_too() -> None:
    assert names(composed("a", plain("a", requires=("ram",)))) == [
        "standard",
        "flush",
        "poll",
        "ram",
        "a",
    ]


def test_a_named_claimant_replaces_one_of_a_bundle() -> None:
    assert names(composed("both,tape", plain("both", bundle=("ram",))))[-2:] == ["both", "tape"]


def test_two_named_claimants_are_an_error_that_says_how_to_choose() -> None:
    assert mistake("ram,tape") == (
        "plugin `ram` (given directly) and plugin `tape` (given directly) both claim the slot "
        "`storage`, which takes one; choose by taking one away: --plugins -ram or --plugins -tape"
    )
    assert "`disk`" in mistake("disk,ram") and "`ram`" in mistake("disk,ram")


def test_a_slot_without_claimant_is_an_error() -> None:
    assert mistake("-disk") == (
        "no enabled plugin implements the slot `storage` (taken away: -disk); enable one that "
        "does: `mq plugins` lists all with their slots"
    )


def test_who_requires_the_loser_of_a_slot_hears_who_has_it() -> None:
    assert "(plugin `ram` (given directly) has its slot `storage`)" in mistake(
        "a,ram", plain("a", requires=("disk",))
    )


# --- order ----------------------------------------------------------------------------------


def test_before_and_after_move_standard_members_only() -> None:
    a = plain("a", before=("poll",))
    assert names(composed("a", a)) == ["standard", "disk", "flush", "a", "poll"]
    b = plain("b", after=("a",))
    assert names(composed("a,b", a, b)) == ["standard", "disk", "flush", "a", "poll", "b"]


def test_a_wish_about_a_plugin_that_is_not_enabled_is_nothing() -> None:
    assert names(composed("a", plain("a", before=("ram",), after=("nobody",))))[-1] == "a"


@pytest.mark.parametrize("wish", [{"before": ("a",)}, {}])
def test_a_written_order_that_breaks_a_wish_names_both(wish: dict[str, Sequence[str]]) -> None:
    b = plain("b", **wish)
    a = plain("a") if wish else plain("a", after=("b",))
    says = "b" if wish else "a"
    assert mistake("a,b", a, b) == (
        "plugin `a` (given directly) is written before plugin `b` (given directly), but `b` must "
        f"stand before `a` (says plugin `{says}` (given directly)); write b,a"
    )


def test_wishes_in_a_circle_name_the_circle() -> None:
    a, b = plain("a", before=("poll",)), plain("b", after=("poll",))
    message = mistake("b,a", a, b)
    assert message.startswith("the order of plugins is a circle: ")
    for step in (
        "`b` before `a` (as written)",
        "`a` before `poll` (says plugin `a` (given directly))",
        "`poll` before `b` (says plugin `b` (given directly))",
    ):
        assert step in message


# --- installed distributions ----------------------------------------------------------------

Publish = Callable[..., list[EntryPoint]]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publish]:
    """Make a distribution on disk with one module per plugin; returns all entry points so far."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def publish(distribution: str, version: str, **modules: str) -> list[EntryPoint]:
        importlib.invalidate_caches()
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {distribution}\nVersion: {version}\n")
        lines = ["[cometmq.plugins]"]
        for name, source in modules.items():
            module = f"published_{distribution.replace('-', '_')}_{name}"
            (tmp_path / f"{module}.py").write_text(source)
            lines.append(f"{name} = {module}:It")
        (info / "entry_points.txt").write_text("\n".join(lines))
        found = distributions(path=[str(tmp_path)])
        return [entry_point for it in found for entry_point in it.entry_points]

    yield publish
    for module in [name for name in sys.modules if name.startswith("published_")]:
        del sys.modules[module]


def composed_from(entry_points: list[EntryPoint], plugins: str) -> Composition:
    config = load_config(None, {}, {"plugins": plugins})
    base: dict[str, Any] = {kind.name: kind for kind in BASE}
    return compose(config, extra_plugins=base, entry_points=entry_points)


GOOD = "class It:\n    name = {name!r}\n"


def test_an_installed_plugin_is_known_by_distribution_and_version(publish: Publish) -> None:
    found = publish("my-dist", "1.2", guard=GOOD.format(name="guard"))
    plugin = composed_from(found, "guard").plugins[-1]
    assert (plugin.name, plugin.distribution, plugin.version) == ("guard", "my-dist", "1.2")
    assert plugin.target == "published_my_dist_guard:It"


def test_only_enabled_plugins_are_imported(publish: Publish) -> None:
    found = publish("lazy", "1", one=GOOD.format(name="one"), two=GOOD.format(name="two"))
    composed_from(found, "one")
    assert "published_lazy_one" in sys.modules
    assert "published_lazy_two" not in sys.modules


def test_an_import_that_fails_names_everybody(publish: Publish) -> None:
    found = publish("broken", "3.1", guard="import no_such_module_here\n")
    with pytest.raises(PluginError) as caught:
        composed_from(found, "guard")
    assert str(caught.value) == (
        "plugin `guard` (broken 3.1) can't be imported from published_broken_guard:It: "
        "ModuleNotFoundError: No module named 'no_such_module_here'; install what it needs, or "
        "do without it: name it no more, or, where it is on by default, take it out with "
        "--plugins -guard"
    )
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_two_distributions_with_one_name_are_an_error_only_for_who_wants_it(
    publish: Publish,
) -> None:
    publish("first", "1", guard=GOOD.format(name="guard"))
    found = publish("second", "2", guard=GOOD.format(name="guard"))
    assert names(composed_from(found, "")) == ["standard", "disk", "flush", "poll"]
    with pytest.raises(PluginError) as caught:
        composed_from(found, "guard")
    assert str(caught.value) == (
        "two distributions publish the same name: plugin `guard` (first 1) and plugin `guard` "
        "(second 2); uninstall one of them"
    )


def test_a_name_that_differs_from_the_entry_point_is_an_error(publish: Publish) -> None:
    found = publish("odd", "1", guard=GOOD.format(name="gaurd"))
    with pytest.raises(PluginError, match="`guard` .odd 1. calls itself 'gaurd', not 'guard';"):
        composed_from(found, "guard")


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("options = dict", "no msgspec.Struct class; declare options as a subclass"),
        ("requires = 'poll'", "no tuple of plugin names; write requires = (NAME,), with the comma"),
        ("before = (1,)", "no tuple of plugin names; write before = (NAME,), with the comma"),
    ],
)
def test_a_declaration_of_the_wrong_kind(publish: Publish, attribute: str, expected: str) -> None:
    found = publish("odd", "1", guard=f"{GOOD.format(name='guard')}    {attribute}\n")
    with pytest.raises(PluginError) as caught:
        composed_from(found, "guard")
    assert str(caught.value).startswith("plugin `guard` (odd 1) has `")
    assert expected in str(caught.value)


# --- objects and constructors ---------------------------------------------------------------


def test_a_ready_object_is_used_as_it_is() -> None:
    ready = Ram()
    config = load_config(None, {}, {"plugins": "ram"})
    extra: dict[str, object] = {kind.name: kind for kind in BASE}
    composition = compose(config, extra_plugins={**extra, "ram": ready}, entry_points=())
    assert composition.plugins[-1].plugin is ready


def test_a_constructor_that_fails_names_the_plugin() -> None:
    class Fails(Plugin):
        name = "fails"

        def __init__(self) -> None:
            raise RuntimeError("no luck")

    assert mistake("fails", Fails).startswith(
        "plugin `fails` (given directly) can't be made: RuntimeError: no luck; correct its options "
        "under [plugin.fails], or take it out with --plugins -fails"
    )


def test_a_plugin_is_called_with_its_options() -> None:
    class Options(msgspec.Struct):
        size: int = 3

    class Sized(Plugin):
        name = "sized"
        options = Options

        def __init__(self, options: Options) -> None:
            self.size = options.size

    assert composed("sized", Sized).plugins[-1].plugin.size == 3
    composition = composed("sized", Sized, **{"plugin.sized.size": 4})
    assert composition.plugins[-1].plugin.size == 4
    assert composition.plugins[-1].options == Options(4)


def test_the_standard_set_comes_through_the_same_door_as_all_others() -> None:
    with pytest.raises(PluginError, match="there is no plugin `standard` .the set that every"):
        compose(Config(), entry_points=())
