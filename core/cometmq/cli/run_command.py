"""`mq run`: compose a broker from file, environment and command line, and serve until a signal."""

from __future__ import annotations

import asyncio
import logging
import os

import click

from cometmq.broker import Broker
from cometmq.cli.descriptors import fitted, raise_limit, shortage
from cometmq.cli.ending import Ending
from cometmq.cli.output import json_option, print_json
from cometmq.config import Config, load_config
from cometmq.plugins import compose
from cometmq.real_environment import RealEnvironment

logger = logging.getLogger(__name__)


@click.command()
@click.option("--data", metavar="DIR", help="Data folder (made if missing).")
@click.option("--listen", metavar="ADDRESS", multiple=True, help="tcp://HOST:PORT or ipc://PATH.")
@click.option(
    "--plugins",
    metavar="NAMES",
    default="",
    help="Comma-separated; added to the standard set in this order; -NAME takes one away.",
)
@click.option("--config", "config_path", metavar="FILE", help="TOML file, usually mq.toml.")
@click.option("--level", type=click.Choice(["memory", "disk", "quorum"]), help="Default ack level.")
@click.option("--insecure", is_flag=True, help="Listen beyond loopback without authentication.")
@click.option(
    "--drop-state",
    multiple=True,
    metavar="NAME",
    help="Give up the state that a plugin which is now off left in the log, for good.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is logged to stderr.",
)
@json_option
def run(
    data: str | None,
    listen: tuple[str, ...],
    plugins: str,
    config_path: str | None,
    level: str | None,
    insecure: bool,
    drop_state: tuple[str, ...],
    log_level: str,
    as_json: bool,
) -> None:
    """Run a broker in the foreground until SIGINT or SIGTERM.

    A second signal exits at once; the log can take it. A plugin that never returns is named and
    ends it too, after broker.loop_stall_limit_ms.
    """
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    overrides: dict[str, object] = {
        "broker.data": data,
        "broker.listen": list(listen) or None,
        "broker.level": level,
        "broker.insecure": True if insecure else None,
        "log.drop_state": list(drop_state) or None,
        "plugins": plugins or None,
    }
    given = {key: value for key, value in overrides.items() if value is not None}
    config = load_config(config_path, os.environ, given)
    descriptors = raise_limit()
    note = shortage(config, descriptors)
    if note:
        logger.warning("%s", note)
    asyncio.run(_serve(fitted(config, descriptors), as_json, [note] if note else []))


async def _serve(config: Config, as_json: bool, notes: list[str]) -> None:
    """Start, tell, wait for the end, stop. A start that fails leaves nothing running."""
    stop = asyncio.Event()
    ending = Ending(stop.set, config.broker.loop_stall_limit_ms / 1000)
    environment = RealEnvironment()
    try:
        composition = ending.composition = compose(config)
        broker = Broker(config, environment, composition)
        try:
            await broker.start()
            _tell(broker, as_json, notes)
            await _first(stop.wait(), broker.failed())
        finally:
            await broker.stop()
    finally:
        environment.threads.close()
        ending.close()


def _tell(broker: Broker, as_json: bool, notes: list[str]) -> None:
    lines = [*broker.banner(), *notes]
    if as_json:
        print_json({"addresses": broker.addresses, "lines": lines})
    else:
        for line in lines:
            click.echo(line)


async def _first(*waits: object) -> None:
    """Return when one of the awaitables is done, raising what it raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]  # type: ignore[call-overload]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()
