"""Brokers and clients that run on a JVM: their jars lie where setup.sh has put them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.base import home


def missing(peer: str) -> str:
    """What a peer lacks, or ""."""
    if shutil.which("java") is None:
        return "no java"
    if not any(_jars(peer)):
        return f"no jars in {home() / peer / 'lib'}"
    return ""


def _jars(peer: str) -> list[Path]:
    return list((home() / peer / "lib").glob("*.jar"))


def version(peer: str, artifact: str) -> str:
    """The version in the name of a jar."""
    for jar in _jars(peer):
        if jar.stem.startswith(artifact + "-") and jar.stem[len(artifact) + 1].isdigit():
            return jar.stem[len(artifact) + 1 :]
    return "of unknown version"


def command(peer: str, main_class: str, jvm: Sequence[str]) -> list[str]:
    """The command that runs a class with a peer's jars; arguments are added behind it."""
    base = home() / peer
    path = f"{base / 'classes'}:{base / 'lib' / '*'}"
    # Both the brokers and the clients would write under the user's home else.
    options = ["-Djava.net.preferIPv4Stack=true", f"-Duser.home={base / 'home'}"]
    return ["java", *jvm, *options, "-cp", path, main_class]
