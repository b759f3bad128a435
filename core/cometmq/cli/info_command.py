"""`mq info`: what a running broker says of itself."""

from __future__ import annotations

import click

from cometmq.cli.output import broker_options, counted, print_json
from cometmq.client.admin import Admin
from cometmq.protocol import BrokerInfoReply


@click.command()
@broker_options
def info(connect: str, timeout_s: float, as_json: bool) -> None:
    """Show positions, storage, plugins and health of the broker."""
    with Admin(connect, timeout=timeout_s) as admin:
        reply = admin.broker_info()
    if as_json:
        print_json(reply)
    else:
        _show(reply)


def _show(reply: BrokerInfoReply) -> None:
    """The same for people."""
    click.echo(f"broker    {reply.name}, version {reply.version}, up {reply.uptime_s:,.0f} s")
    click.echo(f"address   {', '.join(reply.addresses)}")
    click.echo(
        f"log       {reply.log_id}, epoch {reply.epoch}, {counted(reply.segments, 'segment')}"
    )
    click.echo(f"data      {reply.data or 'in memory only'}")
    click.echo("positions " + ", ".join(f"{name} {at:,}" for name, at in reply.positions.items()))
    click.echo(f"storage   {_storage(reply.storage)}")
    click.echo(
        f"serving   {counted(reply.topics, 'topic')}, {counted(reply.sessions, 'session')}, "
        f"{reply.parked:,} parked"
    )
    click.echo(f"level     {reply.default_level}; {reply.could_lose}")
    with_hooks = [row["name"] for row in reply.plugins if row["calls"]]
    click.echo("plugins   " + ", ".join(with_hooks))
    if failed := [
        f"{row['name']} {row['errors']}" for row in reply.plugins if row["errors"] != "0"
    ]:
        click.echo(f"ERRORS    of plugins: {', '.join(failed)}; the broker's log says which")
    for label, text in reply.status.items():
        click.echo(f"{label:<9} {text}")
    if reply.in_doubt:
        click.echo(f"IN DOUBT  {reply.in_doubt}")


def _storage(stats: dict[str, int]) -> str:
    text = f"{stats['unsynced_bytes']:,} bytes unsynced, {stats['waiting']:,} waiting; "
    if "bytes_total" not in stats:
        return text + "the space on that disk is not known"
    free, total = stats["bytes_free"] / 1e9, stats["bytes_total"] / 1e9
    return text + f"{free:,.1f} of {total:,.1f} GB are free"
