"""A hook that can't work is an error before anything runs, and says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.config import Config, PluginsConfig
from cometmq.errors import PluginError
from cometmq.hookspecs import AWAITED, HOT, SLOTS, hookimpl
from cometmq.plugins import Plugin, compose
from cometmq.plugins.verify import spec_arguments


class Standard(Plugin):
    name = "standard"

    @hookimpl
    def storage(self) -> str:
        return "storage"

    @hookimpl
    def flush_policy(self) -> str:
        return "flush"


def mistake(kind: type) -> str:
    extra: dict[str, object] = {"standard": Standard, "it": kind}
    config = Config(plugins=PluginsConfig(enable=("it",)))
    with pytest.raises(PluginError) as caught:
        compose(config, extra_plugins=extra, entry_points=())
    return str(caught.value)


def test_a_misspelt_hook_offers_the_right_one() -> None:
    class It:
        @hookimpl
        def autorize(self, session: Any) -> None: ...

    assert mistake(It) == (
        "plugin `it` (given directly): hook `autorize` is no hook; did you mean authorize?"
    )


def test_a_misspelt_argument_offers_the_right_one() -> None:
    class It:
        @hookimpl
        def admit(self, sesion: Any) -> None: ...

    assert mistake(It) == (
        "plugin `it` (given directly): hook `admit` has no argument `sesion`; did you mean "
        "session? (it may take session, operation, size_bytes)"
    )


def test_a_hook_without_arguments_says_that_it_takes_none() -> None:
    class It:
        @hookimpl
        def jobs(self, broker: Any) -> None: ...

    assert mistake(It).endswith("hook `jobs` has no argument `broker`; (it takes no arguments)")


def test_an_argument_with_a_default_would_never_be_passed() -> None:
    class It:
        @hookimpl
        def admit(self, session: Any = None) -> None: ...

    assert "hook `admit` gives its argument `session` a default" in mistake(It)


def test_collecting_arguments_is_no_way_to_name_them() -> None:
    class Stars:
        @hookimpl
        def admit(self, **kwargs: Any) -> None: ...

    class Keywords:
        @hookimpl
        def admit(self, *, session: Any) -> None: ...

    assert "hook `admit` takes `**kwargs: 'Any'`; use plain arguments only: it may" in mistake(
        Stars
    )
    assert "hook `admit` takes `session: 'Any'`; use plain" in mistake(Keywords)


def test_a_hook_that_nobody_awaits_can_not_be_async() -> None:
    class Hot:
        @hookimpl
        async def authorize(self, session: Any) -> None: ...

    class Cold:
        @hookimpl
        async def authenticate(self, client_id: str) -> str:
            return client_id

    class Yields:
        @hookimpl
        async def metrics(self) -> Any:
            yield 1

    for kind in (Hot, Cold, Yields):
        assert "is async, but nobody awaits it; make it a plain def" in mistake(kind)


def test_a_forgotten_mark_is_found() -> None:
    class It:
        def authorize(self, session: Any) -> None: ...

    assert mistake(It).endswith(
        "hook `authorize` has the name of a hook but no mark; add @hookimpl"
    )


def test_order_by_marks_is_refused() -> None:
    class First:
        @hookimpl(tryfirst=True)
        def authorize(self, session: Any) -> None: ...

    class Last:
        @hookimpl(trylast=True)
        def authorize(self, session: Any) -> None: ...

    for kind in (First, Last):
        assert "hook `authorize` is marked as a wrapper, tryfirst or trylast" in mistake(kind)


def test_wrappers_are_refused() -> None:
    class It:
        @hookimpl(wrapper=True)
        def authorize(self, session: Any) -> Any:
            return (yield)

    assert "hook `authorize` is marked as a wrapper" in mistake(It)


def test_the_same_object_under_two_names_is_refused() -> None:
    ready = Plugin()
    extra: dict[str, object] = {"standard": Standard, "one": ready, "two": ready}
    config = Config(plugins=PluginsConfig(enable=("one", "two")))
    with pytest.raises(PluginError, match=r"plugin `two` \(given directly\) can't be registered"):
        compose(config, extra_plugins=extra, entry_points=())


def test_a_hook_may_have_another_method_name() -> None:
    class It:
        @hookimpl(specname="authorize")
        def may_it(self, session: Any) -> str:
            return "yes"

    extra: dict[str, object] = {"standard": Standard, "it": It}
    config = Config(plugins=PluginsConfig(enable=("it",)))
    composition = compose(config, extra_plugins=extra, entry_points=())
    assert composition.plugins[-1].hooks == ("authorize",)
    assert [call(1, 2, 3) for call in composition.chain("authorize")] == ["yes"]


def test_every_marked_hook_is_a_hook_and_has_one_mark() -> None:
    marked = [*SLOTS, *HOT, *AWAITED]
    assert set(marked) <= set(spec_arguments())
    assert len(set(marked)) == len(marked)
