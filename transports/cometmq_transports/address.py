"""Addresses: `tcp://HOST:PORT` and `ipc://PATH`, checked before a socket or ZeroMQ sees them.

ZeroMQ answers most mistakes with "Invalid argument", a name that can't be resolved with silence,
and a socket file of a living broker with its removal. So all three are looked at here.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
from typing import Any, NamedTuple

from cometmq.errors import ConfigError
from cometmq.tcp_address import host_and_port

IPC_PATH_BYTES_MAX = 107
_MOMENT_S = 0.1

_BIND_FAILURES = {
    errno.EADDRINUSE: "it is in use: stop the process that has it or choose another port",
    errno.EADDRNOTAVAIL: "no interface of this machine has that address: choose one that exists",
    errno.EACCES: "this user may not: choose a port above 1023, or a folder that can be written",
    errno.ENOENT: "the folder does not exist: create it or choose another path",
    errno.ENOTDIR: "the folder does not exist: create it or choose another path",
}


class Endpoint(NamedTuple):
    """An address taken apart."""

    scheme: str
    host: str
    """Host of tcp without brackets, path of ipc."""
    port: int = 0

    def text(self) -> str:
        """The address as it is written."""
        if self.scheme == "ipc":
            return f"ipc://{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


class Place(NamedTuple):
    """Where to connect or bind, in the system's own words."""

    family: int
    sockaddr: str | tuple[Any, ...]


def parse(address: str, *, listening: bool) -> Endpoint:
    """Take an address apart. Port 0 is allowed only for listening.

    Raises ConfigError, which says what is wrong and gives an example.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in ("tcp", "ipc") or not rest:
        raise ConfigError(
            f"{address!r} is no address; write tcp://HOST:PORT, for example"
            " tcp://127.0.0.1:7800, or ipc://PATH"
        )
    if scheme == "ipc":
        return _parse_ipc(address, rest)
    host, port = host_and_port(address, listening=listening)
    return Endpoint("tcp", "0.0.0.0" if host == "*" and listening else host, port)


def _parse_ipc(address: str, path: str) -> Endpoint:
    if path == "@":
        raise ConfigError(
            f"{address!r} names no socket: write a name after the @, for example ipc://@mq"
        )
    if len(os.fsencode(path)) > IPC_PATH_BYTES_MAX or "\0" in path:
        raise ConfigError(
            f"the path in {address!r} can't name a socket: at most {IPC_PATH_BYTES_MAX} bytes are"
            " allowed; choose a shorter one"
        )
    return Endpoint("ipc", path)


def places(endpoint: Endpoint) -> list[Place]:
    """All that the address stands for, the best one first. May wait for the resolver.

    Raises OSError if the name is unknown.
    """
    if endpoint.scheme != "tcp":
        path = endpoint.host
        return [Place(socket.AF_UNIX, "\0" + path[1:] if path.startswith("@") else path)]
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # labels that are empty or too long for DNS
        raise OSError(str(error)) from error
    return list(dict.fromkeys(Place(family, sockaddr) for family, _, _, _, sockaddr in found))


def resolve(endpoint: Endpoint) -> Endpoint:
    """Replace a host name by its first address; a link-local one keeps its scope. May wait for
    the resolver.

    Raises OSError if the name is unknown.
    """
    if endpoint.scheme != "tcp":
        return endpoint
    sockaddr = places(endpoint)[0].sockaddr
    scope = sockaddr[3] if len(sockaddr) > 3 else 0
    return endpoint._replace(host=f"{sockaddr[0]}%{scope}" if scope else str(sockaddr[0]))


def bind_failure(address: str, code: int | None, text: str | None) -> ConfigError:
    """What to raise when the system refused to bind, with its error number and its words."""
    why = _BIND_FAILURES.get(code or 0, f"{text}: check the address")
    return ConfigError(f"can't listen on {address}: {why}")


def check_socket_file(address: str, path: str) -> None:
    """Make sure that binding to `path` takes nothing away from anybody: what lies there is going
    to be unlinked. A socket file that nobody answers on was left behind by a killed process; who
    has bound it and is about to listen answers a moment later.

    Raises ConfigError.
    """
    if path.startswith("@"):
        return
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"can't listen on {address}: {error.strerror}; choose a path") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"can't listen on {address}: a file lies there; choose another path")
    answers = _answers(address, path)
    if not answers:
        select.select((), (), (), _MOMENT_S)
        answers = _answers(address, path)
    if answers:
        raise ConfigError(
            f"{address} is in use by another process: stop that one or choose another path"
        )


def _answers(address: str, path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            raise ConfigError(f"can't listen on {address}: {error}; choose another path") from error
    return True
