"""Settings of a consumer that belongs to a group."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from cometmq.client.arguments import check_number
from cometmq.client.fetcher import ExpiredPolicy
from cometmq.client.validation import check_name
from cometmq.errors import ConfigError, Refused

Mode = Literal["clustering", "broadcasting"]


class GroupOptions(msgspec.Struct, frozen=True):
    """See `Consumer`."""

    group: str
    mode: Mode = "clustering"
    start: str | datetime = "earliest"
    on_expired: ExpiredPolicy = "earliest"
    session_timeout_s: float = 10.0
    heartbeat_s: float = 3.0
    max_poll_s: float = 300.0
    commit_interval_s: float = 1.0
    prefetch_messages: int = 10_000
    prefetch_bytes: int = 8 << 20
    fetch_bytes: int = 1 << 20
    fetch_wait_s: float = 20.0
    strategy: str = ""
    room: str = ""
    strict: bool = False
    timeout_s: float = 30.0

    def check(self) -> None:
        """Raises Refused and ConfigError for a setting that can't be used."""
        check_name("group", self.group)
        for name, allowed in (
            ("mode", ("clustering", "broadcasting")),
            ("on_expired", ("earliest", "latest", "stop")),
        ):
            if getattr(self, name) not in allowed:
                choices = " or ".join(repr(choice) for choice in allowed)
                raise Refused(f"{name}={getattr(self, name)!r}: choose {choices}")
        if not isinstance(self.start, datetime) and self.start not in ("earliest", "latest"):
            raise Refused(f"start={self.start!r}: 'earliest', 'latest' or a datetime is wanted")
        for name in (
            "session_timeout_s",
            "heartbeat_s",
            "max_poll_s",
            "commit_interval_s",
            "prefetch_messages",
            "prefetch_bytes",
            "fetch_bytes",
            "timeout_s",
        ):
            whole = not name.endswith("_s")
            check_number(name.removesuffix("_s"), getattr(self, name), above=0, whole=whole)
        check_number("fetch_wait", self.fetch_wait_s, least=0)
        if self.heartbeat_s * 2 > self.session_timeout_s:
            raise ConfigError(
                f"heartbeat={self.heartbeat_s:g} s with session_timeout="
                f"{self.session_timeout_s:g} s: at least two heartbeats must fit into a session"
            )

    @property
    def start_text(self) -> str:
        """`start` as a claim says it."""
        if isinstance(self.start, datetime):
            return str(int(self.start.timestamp() * 1000))
        return self.start


class Lease(msgspec.Struct):
    """How long we may believe, on our own clock, that our claims are still ours."""

    until_s: float = 0.0
