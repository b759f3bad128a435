"""`mq info`, before a real broker in process."""

from __future__ import annotations

from collections.abc import Sequence

from click.testing import CliRunner

from cometmq import Message, Producer
from cometmq.cli import cli
from cometmq.hookspecs import hookimpl
from cometmq.testing import EmbeddedBroker


class Failing:
    """Fails at every message, to nobody's harm."""

    name = "failing"

    @hookimpl
    def readable_advanced(self, queues: Sequence[tuple[int, int]]) -> None:
        raise ValueError("on purpose")


def told(broker: EmbeddedBroker) -> str:
    result = CliRunner().invoke(cli, ["info", "--connect", broker.address])
    assert result.exit_code == 0, result.output
    return result.output


def test_it_tells_of_plugins_that_failed_and_only_then() -> None:
    with EmbeddedBroker(extra_plugins={"failing": Failing}) as broker:
        assert "ERRORS" not in told(broker)
        with Producer(broker.address) as producer:
            producer.send(Message("t", b"x"))
        assert "ERRORS    of plugins: failing 1; " in told(broker)
