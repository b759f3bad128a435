"""Calling hooks: order, subset arguments, counts, blame, and who runs now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from cometmq.config import Config, PluginsConfig
from cometmq.errors import LogLocked, PluginError, PluginFailure
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Metric
from cometmq.plugins import Composition, Plugin, compose


class Standard(Plugin):
    name = "standard"

    @hookimpl
    def storage(self, data: str) -> Mock:
        return Mock(where=data)

    @hookimpl
    def flush_policy(self) -> None:
        return None


def composed(**plugins: object) -> Composition:
    """The given plugins behind a standard set of two slots, in the order of the keywords."""
    config = Config(plugins=PluginsConfig(enable=tuple(plugins)))
    return compose(config, extra_plugins={"standard": Standard, **plugins}, entry_points=())


def authorizer(answer: Callable[..., Any]) -> object:
    class It:
        @hookimpl
        def authorize(self, resource: str, session: Any) -> Any:
            return answer(resource, session)

    return It()


def test_a_chain_has_the_order_of_the_plugins_and_takes_all_arguments() -> None:
    def answer(name: str) -> object:
        return authorizer(lambda resource, session: (name, resource, session))

    composition = composed(b=answer("b"), a=answer("a"))
    chain = composition.chain("authorize")
    assert [call("session", "SEND", "orders") for call in chain] == [
        ("b", "orders", "session"),
        ("a", "orders", "session"),
    ]
    assert composition.implementers("authorize") == ("b", "a")


def test_a_hook_that_nobody_implements_is_an_empty_chain() -> None:
    assert composed().chain("admit") == ()


def test_calls_and_errors_are_counted_by_plugin_and_hook() -> None:
    def answer(resource: str, session: Any) -> None:
        if resource == "bad":
            raise ValueError("it is bad")

    composition = composed(guard=authorizer(answer))
    (call,) = composition.chain("authorize")
    for resource in ("good", "bad", "good"):
        try:
            call(None, "SEND", resource)
        except PluginFailure as failure:
            assert resource == "bad"
            assert failure.plugin == "guard"
    assert composition.counters() == {
        "standard": {"storage": (0, 0), "flush_policy": (0, 0)},
        "guard": {"authorize": (3, 1)},
    }


def test_chains_of_one_hook_share_their_counts() -> None:
    composition = composed(guard=authorizer(lambda *_: None))
    for _ in range(2):
        composition.chain("authorize")[0](None, "", "")
    assert composition.counters()["guard"]["authorize"] == (2, 0)


def test_a_failure_names_plugin_distribution_hook_and_next_step() -> None:
    def answer(resource: str, session: Any) -> None:
        raise KeyError("x")

    (call,) = composed(guard=authorizer(answer)).chain("authorize")
    with pytest.raises(PluginFailure) as caught:
        call(None, "SEND", "orders")
    assert str(caught.value) == (
        "plugin `guard` (given directly) failed in hook `authorize`: KeyError: 'x'; tell its "
        "author, or take it out with --plugins -guard"
    )
    assert (caught.value.plugin, caught.value.hook) == ("guard", "authorize")
    assert isinstance(caught.value.__cause__, KeyError)


def test_whatever_a_hot_hook_raises_is_the_plugins_failure() -> None:
    def answer(resource: str, session: Any) -> None:
        raise LogLocked("not yours")

    (call,) = composed(guard=authorizer(answer)).chain("authorize")
    with pytest.raises(PluginFailure):
        call(None, "SEND", "orders")


def test_running_names_the_hook_while_it_runs_and_the_outer_one_again_after_an_inner() -> None:
    seen: list[object] = []

    class Outer:
        @hookimpl
        def admit(self) -> None:
            seen.append(composition.running)
            composition.chain("authorize")[0](None, "", "")
            seen.append(composition.running)

    inner = authorizer(lambda *_: seen.append(composition.running))
    composition = composed(outer=Outer(), inner=inner)
    composition.chain("admit")[0](None, "", 0)
    assert seen == [("outer", "admit"), ("inner", "authorize"), ("outer", "admit")]
    assert composition.running is None


def test_running_is_cleared_by_a_failure() -> None:
    def answer(resource: str, session: Any) -> None:
        raise ValueError

    composition = composed(guard=authorizer(answer))
    with pytest.raises(PluginFailure):
        composition.chain("authorize")[0](None, "", "")
    assert composition.running is None


def test_a_slot_gives_what_its_one_implementation_returns() -> None:
    assert composed().slot("storage", environment=None, data="here").where == "here"


def test_a_slot_that_returns_something_else_is_an_error() -> None:
    class Mistaken:
        @hookimpl
        def storage(self) -> None:
            """Nowhere."""

        @hookimpl
        def flush_policy(self) -> str:
            return "whenever"

    with pytest.raises(PluginFailure, match="'whenever' from hook `flush_policy`.*FlushPolicy"):
        composed(mistaken=Mistaken()).slot("flush_policy")


def test_a_slot_that_returns_nothing_is_an_error() -> None:
    with pytest.raises(PluginError, match="returned nothing for the slot `flush_policy`"):
        composed().slot("flush_policy")


def test_a_set_up_error_of_a_slot_passes_with_a_note_of_who_raised_it() -> None:
    class Locked:
        @hookimpl
        def storage(self) -> None:
            raise LogLocked("somebody else has the folder; stop it first")

        @hookimpl
        def flush_policy(self) -> str:
            return "flush"

    with pytest.raises(LogLocked) as caught:
        composed(locked=Locked()).slot("storage", environment=None, data="")
    assert caught.value.__notes__ == [
        "raised by plugin `locked` (given directly) in hook `storage`"
    ]


def test_any_other_error_of_a_cold_hook_is_a_failure() -> None:
    class Odd:
        @hookimpl
        def jobs(self) -> None:
            raise ZeroDivisionError

    with pytest.raises(PluginFailure, match="`odd` .* in hook `jobs`: ZeroDivisionError"):
        composed(odd=Odd()).collect("jobs")


class Gives:
    """Answers a question in its own way."""

    def __init__(self, what: Any) -> None:
        self.what = what

    @hookimpl
    def metrics(self) -> Any:
        return self.what() if callable(self.what) else self.what


def failing_generator() -> Iterator[Metric]:
    yield METRIC
    raise ValueError("half way")


METRIC = Metric("one", "One.", "gauge", 1)


def test_collect_leaves_out_who_has_nothing() -> None:
    composition = composed(a=Gives([METRIC]), b=Gives(None), c=Gives([]))
    assert composition.collect("metrics") == [("a", [METRIC]), ("c", [])]


@pytest.mark.parametrize(
    "what",
    [7, "no", [7], [METRIC, "x"], True, failing_generator],
    ids=lambda what: type(what).__name__,
)
def test_an_answer_that_is_none_is_named_and_the_others_still_heard(
    what: object, caplog: pytest.LogCaptureFixture
) -> None:
    composition = composed(a=Gives(what), b=Gives(lambda: iter([METRIC])))
    with pytest.raises(PluginFailure, match="`?a`? .*`metrics`.*--plugins -a"):
        composition.collect("metrics")
    assert composition.collect_sound("metrics") == [("b", [METRIC])]
    assert composition.counters()["a"]["metrics"] == (2, 2)
    assert "`metrics`" in caplog.text


def test_a_call_with_wrong_arguments_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="hook storage is called with"):
        composed().slot("storage", data="")


def test_async_hooks_are_awaited_one_after_the_other() -> None:
    class Slow:
        @hookimpl
        async def started(self, broker: str) -> None:
            log.append(broker)
            await asyncio.sleep(0)
            log.append("slow")

    class Plain:
        @hookimpl
        def started(self, broker: str) -> None:
            log.append("plain")

    log: list[str] = []
    composition = composed(a=Slow(), b=Plain(), c=Slow())
    asyncio.run(composition.call_each("started", broker="x"))
    assert log == ["x", "slow", "plain", "x", "slow"]


def test_stop_hooks_are_all_called_in_reverse_and_their_errors_collected() -> None:
    order: list[str] = []

    class Noted:
        def __init__(self, name: str, fails: Exception | None = None) -> None:
            self.name = name
            self.fails = fails

        @hookimpl
        async def stopping(self) -> None:
            await asyncio.sleep(0)
            order.append(self.name)
            if self.fails:
                raise self.fails

    composition = composed(
        a=Noted("a", ValueError("first")), b=Noted("b"), c=Noted("c", ValueError("last"))
    )
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(composition.call_all_reversed("stopping", broker="x"))
    assert order == ["c", "b", "a"]
    failures = caught.value.exceptions
    assert [type(failure) for failure in failures] == [PluginFailure, PluginFailure]
    assert [str(failure.__cause__) for failure in failures] == ["last", "first"]
    assert composition.counters()["a"]["stopping"] == (1, 1)
    assert composition.counters()["b"]["stopping"] == (1, 0)


def test_an_async_hook_runs_only_in_its_own_steps() -> None:
    """While it waits, the loop works for others: blaming it for their blocking would be wrong."""
    seen: list[object] = []

    class Waits:
        @hookimpl
        async def started(self, broker: asyncio.Event) -> None:
            seen.append(composition.running)
            await broker.wait()
            seen.append(composition.running)

    composition = composed(waits=Waits())

    async def main() -> None:
        event = asyncio.Event()
        task = asyncio.ensure_future(composition.call_each("started", broker=event))
        await asyncio.sleep(0)
        seen.append(composition.running)
        event.set()
        await task

    asyncio.run(main())
    assert seen == [("waits", "started"), None, ("waits", "started")]


def test_cancelling_an_async_hook_reaches_it() -> None:
    seen: list[str] = []

    class Waits:
        @hookimpl
        async def started(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("cancelled")

    async def main() -> None:
        task = asyncio.ensure_future(composed(waits=Waits()).call_each("started", broker=None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]
