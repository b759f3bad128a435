"""Compiled hook calls: an implementation behind a function that takes the hook's full argument
list, counts, tells the watchdog who runs, and blames.

A call through pluggy costs 1 us and more, on every request; such a function about 0.15 us. It is
built from source text, since any generic form (`*args`, a tuple of indexes) costs a multiple.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pluggy

from cometmq.errors import FAILURES, CometError, PluginFailure, tellable
from cometmq.plugins.discovery import Candidate
from cometmq.plugins.returns import described, fits, promised, settled

_TEMPLATE = """
def call({all}):
    outer = state.running
    state.running = place
    counter.calls += 1
    try:
        return method({wanted})
    except failures as error:
        raise blame(error) from error
    finally:
        state.running = outer
"""


WORDS_MAX = 2000
"""Characters of what an error says."""


class Running:
    """For a watchdog in another thread: who runs now, (plugin, hook), and what is awaited, in
    words; None for nobody and nothing."""

    __slots__ = ("awaited", "running")

    def __init__(self) -> None:
        self.running: tuple[str, str] | None = None
        self.awaited: str | None = None


class HookCall:
    """One implementation of one hook, compiled, with its counts."""

    __slots__ = ("calls", "candidate", "errors", "function", "hook", "place", "state")

    def __init__(
        self,
        candidate: Candidate,
        hook: str,
        implementation: pluggy.HookImpl,
        arguments: Sequence[str],
        state: Running,
    ) -> None:
        self.candidate = candidate
        self.hook = hook
        self.place = (candidate.name, hook)
        self.state = state
        self.calls = 0
        self.errors = 0
        self.function = self._compile(implementation, arguments)

    def _compile(
        self, implementation: pluggy.HookImpl, arguments: Sequence[str]
    ) -> Callable[..., Any]:
        # Numbers instead of names, so that no argument can shadow what the template uses.
        places = {name: f"a{index}" for index, name in enumerate(arguments)}
        wanted = [places[name] for name in implementation.argnames]
        source = _TEMPLATE.format(all=", ".join(places.values()), wanted=", ".join(wanted))
        scope: dict[str, Any] = {
            "state": self.state,
            "place": self.place,
            "counter": self,
            "method": implementation.function,
            "blame": self.blame,
            "failures": FAILURES,
        }
        exec(compile(source, f"<hook {self.candidate.name}.{self.hook}>", "exec"), scope)
        function: Callable[..., Any] = scope["call"]
        function.__qualname__ = f"{self.candidate.name}.{self.hook}"
        # So that who judges an answer on the message path can name and count who gave it.
        function.__dict__["wrong_answer"] = self.wrong_answer
        return function

    def blame(self, error: BaseException) -> PluginFailure:
        """Count the error and name who is to blame for it."""
        return self._failure(
            f"{self.candidate} failed in hook `{self.hook}`: {type(error).__name__}: "
            f"{_words_of(error)};"
        )

    def wrong_answer(self, answer: object, allowed: str) -> PluginFailure:
        """Count it, and name who returned what the hook does not allow. To go on with it could let
        pass what the plugin is there to stop."""
        return self._failure(
            f"plugin {self.candidate.name} returned {ascii(answer)[:80]} from hook "
            f"`{self.hook}`, which allows {allowed}:"
        )

    def _failure(self, what: str) -> PluginFailure:
        self.errors += 1
        name = self.candidate.name
        return PluginFailure(
            f"{what} tell its author, or take it out with --plugins -{name}",
            plugin=name,
            hook=self.hook,
        )

    def checked(self, arguments: Sequence[Any]) -> Any:
        """Call outside the message path, and return what fits the hook's spec. Raises as `cold`,
        and PluginFailure for what does not fit."""
        answer = self.cold(arguments)
        try:
            answer = settled(self.hook, answer)
        except FAILURES as error:
            raise self.blame(error) from error
        if not fits(answer, promised(self.hook)):
            raise self.wrong_answer(answer, described(promised(self.hook)))
        return answer

    def cold(self, arguments: Sequence[Any]) -> Any:
        """Call outside the message path. An error of CometMQ's own kind already says what to do:
        it passes as it is, with a note of who raised it; all others become PluginFailure."""
        try:
            return self.function(*arguments)
        except PluginFailure as failure:
            self._reraise(failure)

    async def awaited(self, arguments: Sequence[Any]) -> Any:
        """The same, and await the result if it can be awaited."""
        result = self.cold(arguments)
        if not inspect.isawaitable(result):
            return result
        self.state.awaited = f"hook {self.hook} of plugin {self.candidate.name}"
        try:
            return await _Steps(result, self)
        except FAILURES as error:
            self._reraise(self.blame(error), error)
        finally:
            self.state.awaited = None

    def _reraise(self, failure: PluginFailure, error: BaseException | None = None) -> None:
        cause = error or failure.__cause__
        if isinstance(cause, CometError):
            cause.add_note(f"raised by {self.candidate} in hook `{self.hook}`")
            raise cause
        raise failure from cause


def _words_of(error: BaseException) -> str:
    """What an error says: it is a plugin's, and may say anything, or fail at it."""
    try:
        words = str(error)
    except FAILURES as another:
        words = f"(its text can't be had: {type(another).__name__})"
    return tellable(words[:WORDS_MAX])


class _Steps:
    """Await something so that `running` names its hook in each of its own steps, and only then:
    while it waits, the loop does other people's work."""

    def __init__(self, awaitable: Any, call: HookCall) -> None:
        self._awaitable = awaitable
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine = _as_coroutine(self._awaitable)
        step: Callable[[], Any] = lambda: coroutine.send(None)  # noqa: E731
        while True:
            try:
                waits_for = self._watched(step)
            except StopIteration as end:
                return end.value
            try:
                sent = yield waits_for
                step = _bind(coroutine.send, sent)
            except BaseException as error:
                step = _bind(coroutine.throw, error)

    def _watched(self, step: Callable[[], Any]) -> Any:
        state = self._call.state
        outer, state.running = state.running, self._call.place
        try:
            return step()
        finally:
            state.running = outer


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable


def _bind(function: Callable[[Any], Any], value: Any) -> Callable[[], Any]:
    return lambda: function(value)
