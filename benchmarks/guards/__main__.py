"""`python -m benchmarks.guards`: what the guarded paths cost, beside what was agreed on."""

from __future__ import annotations

import sys

import click
import msgspec

from benchmarks.guards import baselines
from benchmarks.guards.counting import Costs, costs_of
from benchmarks.guards.paths import PATHS


@click.command()
@click.option("--renew", is_flag=True, help="Agree on what is found, for this version of Python.")
def main(renew: bool) -> None:
    """Count what each guarded path costs; ends with 1 if one has become dearer."""
    table = baselines.read()
    agreed = table.get(baselines.PYTHON, {})
    found = {name: costs_of(path) for name, path in PATHS.items()}
    dearer = []
    for name, costs in found.items():
        click.echo(f"{name:26}{_row(agreed.get(name), costs)}")
        if name in agreed:
            dearer += baselines.risen(name, agreed[name], costs)
    if renew:
        baselines.write({**table, baselines.PYTHON: found})
    elif dearer:
        click.echo("\n".join(dearer), err=True)
        sys.exit(1)


def _row(agreed: Costs | None, found: Costs) -> str:
    """Each number, and by how much it differs."""
    row = ""
    for name, value in msgspec.structs.asdict(found).items():
        before = None if agreed is None else getattr(agreed, name)
        change = f" ({100 * (value - before) / before:+.1f} %)" if before else ""
        row += f" {name} {value:>9,}{change:11}"
    return row.rstrip()


if __name__ == "__main__":
    main()
