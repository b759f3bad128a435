"""What the faces of all clients share: how they come to an engine, and that they end."""

from __future__ import annotations

from typing import Self

from cometmq.client.engine import Engine
from cometmq.client.transports import address_or_default
from cometmq.environment import Environment
from cometmq.interfaces import Connect
from cometmq.real_environment import RealEnvironment


class Face:
    """A `with` block that closes at its end."""

    def close(self) -> None:
        """End the connection."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AioFace:
    """An `async with` block that closes at its end."""

    async def close(self) -> None:
        """End the connection."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def make_engine(
    address: str | None,
    client_id: str | None,
    credentials: dict[str, str] | None,
    environment: Environment | None,
    connect: Connect | None,
) -> Engine:
    """The inside of a client, from what every constructor takes. Raises ConfigError without an
    address that can be used."""
    return Engine(
        address_or_default(address),
        environment or RealEnvironment(),
        client_id=client_id,
        credentials=credentials,
        connect=connect,
    )
