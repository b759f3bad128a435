"""What stands behind `tcp://`: the same rule for who makes a client and for who opens a socket."""

from __future__ import annotations

from cometmq.errors import ConfigError


def host_and_port(address: str, *, listening: bool) -> tuple[str, int]:
    """Of `tcp://HOST:PORT`, the host without brackets. Port 0 is allowed only for listening.

    Raises ConfigError, which says what is wrong and what to write.
    """
    rest = address.removeprefix("tcp://")
    host, colon, port_text = rest.rpartition(":")
    if not colon or not host or "/" in rest:
        raise ConfigError(f"{address!r} lacks host or port; write tcp://HOST:PORT")
    lowest = 0 if listening else 1
    port = int(port_text) if port_text.isascii() and port_text.isdigit() else -1
    if not lowest <= port <= 65535:
        raise ConfigError(
            f"{port_text!r} in {address!r} is no port; write a number from {lowest} to 65535"
        )
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise ConfigError(f"{address!r}: write an IPv6 address in brackets, as in tcp://[::1]:7800")
    return host.removeprefix("[").removesuffix("]"), port
