"""`mq doctor`: what is wrong with a data folder, what to do, and, when told to, doing it."""

from __future__ import annotations

import os
import sys

import click
import msgspec

from cometmq.cli.composing import read_settings, settings_options
from cometmq.cli.descriptors import highest_limit, shortage
from cometmq.cli.output import json_option, print_json
from cometmq.interfaces import Storage
from cometmq.log.diagnosis import Complaint, Diagnosis, diagnose, repair
from cometmq.plugins import compose
from cometmq.real_environment import RealEnvironment

OUTCOMES = {
    "writes": "serves reads and writes",
    "only reads": "serves reads and refuses writes",
    "fails": "fails",
}


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.option("--repair", "repairs", is_flag=True, help="Move aside what is bad and made again.")
@click.option("--cut", is_flag=True, help="Also give up the log's end from the damage on.")
@settings_options
@json_option
def doctor(
    folder: str, repairs: bool, cut: bool, path: str | None, names: str, as_json: bool
) -> None:
    """Check the data folder DIR and say what to do about what is wrong.

    Nothing is changed but by `--repair` and `--cut`, and nothing is ever deleted: what goes is kept
    in DIR/cut. Stop the broker first. Exit code 0 when there is no error (any more).
    """
    folder = os.path.abspath(folder)
    config = read_settings(path, names)
    composition = compose(config)
    environment = RealEnvironment()

    def storage() -> Storage:
        found: Storage = composition.slot("storage", environment=environment, data=folder)
        return found

    try:
        done: list[str] = []
        idle = ""
        diagnosis = diagnose(environment.files, storage(), folder)
        if repairs or cut:
            idle = _idle(diagnosis, cut)
            done = repair(environment.files, storage(), diagnosis, cut=cut)
            diagnosis = diagnose(environment.files, storage(), folder)
    finally:
        environment.threads.close()
    note = shortage(config, highest_limit())
    if note:
        diagnosis.complaints.append(Complaint("warning", note))
    if idle and not as_json:
        click.echo(f"note: {idle}")
    _print(diagnosis, done, as_json)
    if not diagnosis.healthy:
        sys.exit(1)


def _idle(diagnosis: Diagnosis, cut: bool) -> str:
    """What was asked for and has nothing to do, or empty."""
    found = {complaint.repair for complaint in diagnosis.complaints}
    if cut and "cut" not in found:
        return (
            "there is nothing to cut: no damage that a cut gives up puts the log's state in doubt"
        )
    if not cut and "set-aside" not in found:
        return "there is nothing that --repair moves aside"
    return ""


def _print(diagnosis: Diagnosis, done: list[str], as_json: bool) -> None:
    if as_json:
        found = msgspec.structs.asdict(diagnosis)
        print_json({"healthy": diagnosis.healthy, "done": done, **found})
        return
    for text in done:
        click.echo(f"done: {text}")
    for complaint in diagnosis.complaints:
        way = {"": "", "set-aside": " [--repair moves it to cut/]", "cut": " [--cut]"}
        click.echo(f"{complaint.severity}: {complaint.text}{way[complaint.repair]}")
    click.echo(f"the next start {OUTCOMES[diagnosis.starts]}")
