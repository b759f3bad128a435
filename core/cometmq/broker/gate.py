"""May a session do what it asks, now? The plugins' `authorize` and `admit`, one call each."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.refusals import DAY_MS, hook_refusal, wrong_answer
from cometmq.broker.requests import REQUEST_BYTES
from cometmq.interfaces import Delay, Refuse, SessionInfo
from cometmq.protocol import Status

Authorize = Callable[[SessionInfo, str, str], Refuse | None]
Admit = Callable[[SessionInfo, str, int], Delay | Refuse | None]


class Gate:
    """The compiled chains of the two hooks."""

    def __init__(self, authorize: tuple[Authorize, ...], admit: tuple[Admit, ...]) -> None:
        self._authorize = authorize
        self.asks = bool(authorize)
        """False: nobody is asked what a session may do, so `check` need not be called."""
        self._admit = admit

    def check(self, session: SessionInfo, operation: str, resource: str) -> None:
        """Ask every plugin whether the session may do `operation` to `resource`: a topic, a
        `group:NAME` or empty. Raises Rejected with the first refusal."""
        for ask in self._authorize:
            refuse = ask(session, operation, resource)
            if refuse is not None:
                if not isinstance(refuse, Refuse):
                    raise wrong_answer(ask, refuse, "Refuse or None")
                raise hook_refusal(ask, refuse, Status.NOT_AUTHORIZED)

    def delay_ms(self, session: SessionInfo, operation: str, size_bytes: int) -> int:
        """Ask every plugin whether this request, which counts as `size_bytes`, may go on now: 0,
        or how long it has to wait (the longest that one asks for). Raises Rejected with the first
        refusal."""
        delay_ms = 0
        for ask in self._admit:
            answer = ask(session, operation, size_bytes - REQUEST_BYTES)
            if answer is None:
                continue
            if isinstance(answer, Refuse):
                raise hook_refusal(ask, answer)
            if not (
                isinstance(answer, Delay)
                and isinstance(answer.delay_ms, int | float)
                and 0 <= answer.delay_ms <= DAY_MS
            ):
                raise wrong_answer(ask, answer, f"Delay of 0 to {DAY_MS} ms, Refuse or None")
            delay_ms = max(delay_ms, int(answer.delay_ms))
        return delay_ms
