"""What is wrong with a data folder, what to do about it, and the repairs that lose nothing.

Looks at everything without changing it. A repair moves files into `cut/`, never deletes: what is
derived is made again, what is foreign is out of the way, and the log's end, if it is given up, can
still be read there.
"""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from cometmq.advice import advice
from cometmq.environment import Files
from cometmq.interfaces import Storage
from cometmq.log.recovery import NEWER_STEP, Recovered, recover
from cometmq.log.state import State
from cometmq.log.verification import verify_log

_NODE_BYTES = 8

Severity = Literal["error", "warning", "note"]
Repair = Literal["", "set-aside", "cut"]


class Complaint(msgspec.Struct, frozen=True):
    """One thing about the folder."""

    severity: Severity
    """`error`: the broker does not start, only reads, or has lost something; `warning`: it works,
    but look at it; `note`: good to know."""
    text: str
    """A sentence: what, where, and what to do."""
    repair: Repair = ""
    """What `repair` would do: move `file` into `cut/`, or cut the log at `position`."""
    file: str = ""
    position: int = 0


class Diagnosis(msgspec.Struct):
    """What `mq doctor` says."""

    folder: str
    starts: str
    """What the next start makes of it: `writes`, `only reads`, or `fails`."""
    complaints: list[Complaint] = []

    @property
    def healthy(self) -> bool:
        """No errors."""
        return all(complaint.severity != "error" for complaint in self.complaints)


def diagnose(files: Files, storage: Storage, folder: str) -> Diagnosis:
    """Look at the data folder. `storage` is the folder's, not open. Raises LogError if no broker
    was ever there, OSError when it can't be read."""
    diagnosis = Diagnosis(folder, "writes")
    newest: list[str] = []
    if _is_empty(files, folder):
        text = f"{folder}/log holds no segment: the next start begins a new, empty log"
        diagnosis.complaints.append(Complaint("warning", text))
        node = _check_node(files, diagnosis)
    else:
        node, newest = _check_log(files, storage, diagnosis)
    if node == "" and diagnosis.starts == "writes":
        diagnosis.starts = "fails"
    _check_rights(files, diagnosis, newest)
    return diagnosis


def _check_log(
    files: Files, storage: Storage, diagnosis: Diagnosis
) -> tuple[str | None, list[str]]:
    """Everything but the rights. Returns what `_check_node` does, and the newest segment."""
    folder = diagnosis.folder
    holder = files.locked_by(f"{folder}/lock")
    report = verify_log(files, folder)
    if holder is not None:
        served = f"{holder} serves this folder; what it writes meanwhile may look torn, or is not"
        diagnosis.complaints.append(Complaint("note", f"{served} looked at: stop it to be sure"))
    node = _check_node(files, diagnosis)
    found = _next_start(storage, node)
    if found.in_doubt:
        diagnosis.starts = "only reads"
        diagnosis.complaints.append(_doubt(found))
    for finding in report.findings:
        diagnosis.complaints.append(_complaint(finding.kind, finding.text, finding.file))
    _check_rest(files, diagnosis)
    diagnosis.complaints += [Complaint("note", note) for note in report.notes]
    return node, [segment.file for segment in report.segments][-1:]


def repair(files: Files, storage: Storage, diagnosis: Diagnosis, *, cut: bool) -> list[str]:
    """Do what the complaints propose; cutting only if `cut`. Returns what was done, a sentence
    each. Raises LogLocked while a broker uses the folder, LogError, OSError."""
    done = []
    storage.open()
    try:
        for complaint in diagnosis.complaints:
            if complaint.repair == "cut" and cut:
                kept = storage.cut(complaint.position)
                place = f"the log was cut at position {complaint.position}"
                done.append(f"{place}; what it held from there on is kept in {kept}")
            elif complaint.repair == "set-aside" and files.exists(complaint.file):
                kept = _set_aside(files, complaint.file, f"{diagnosis.folder}/cut")
                done.append(f"{complaint.file} was moved to {kept}")
    finally:
        storage.close()
    return done


def _next_start(storage: Storage, node: str | None) -> Recovered:
    """What a start would find; it writes nothing."""
    storage.open(read_only=True)
    try:
        state = State(())
        return recover(storage, state, lambda _: _NoIndex(), node or "")
    finally:
        storage.close()


class _NoIndex:
    """The index of the queues is not wanted."""

    def known(self, base: int, end: int) -> None: ...

    def open(self, base: int) -> None: ...

    def add(self, *row: int) -> None: ...

    def seal(self, base: int, end: int) -> None: ...


def _doubt(found: Recovered) -> Complaint:
    text = f"the next start only reads: {found.in_doubt}"
    # What lies before the replay has no part in the doubt.
    places = [damage.position for damage in found.damage if damage.position >= found.replayed_from]
    if not places or found.log_id is None or NEWER_STEP in text:
        return Complaint("error", text)
    position = min(places)
    text += (
        f"; without a copy or a replica, all from position {position} on can be given up: read what"
        " is wanted with `mq consume`, then stop the broker and let `mq doctor --cut` cut it off"
    )
    return Complaint("error", text, "cut", position=position)


def _complaint(kind: str, text: str, file: str) -> Complaint:
    if kind in ("index", "name"):
        return Complaint("warning" if kind == "index" else "error", text, "set-aside", file)
    if kind == "torn":
        return Complaint("warning", text)
    return Complaint("error", text)


def _is_empty(files: Files, folder: str) -> bool:
    """Whether a broker was here, and there is no log, or none any more."""
    known = any(files.exists(f"{folder}/{name}") for name in ("node", "lock"))
    return known and not any(name.endswith(".seg") for name in files.list(f"{folder}/log"))


def _check_node(files: Files, diagnosis: Diagnosis) -> str | None:
    """The node's id in hex; None if there is none, empty if it can't be read."""
    path = f"{diagnosis.folder}/node"
    if not files.exists(path):
        text = f"{path} is missing: the next start makes a new id, as for a copied folder"
        diagnosis.complaints.append(Complaint("note", text))
        return None
    text = files.read_file(path).decode("ascii", "replace").strip()
    try:
        whole = len(bytes.fromhex(text)) == _NODE_BYTES
    except ValueError:
        whole = False
    if whole:
        return text
    said = f"{path} is no node id, so no broker starts here: restore it, or let it be made anew"
    diagnosis.complaints.append(Complaint("error", said, "set-aside", path))
    return ""


def _check_rights(files: Files, diagnosis: Diagnosis, newest: list[str]) -> None:
    """What a start writes: the lock, and unless it only reads, new files and the newest segment."""
    folder = diagnosis.folder
    made = [name for name in ("lock", "node", "log") if not files.exists(f"{folder}/{name}")]
    wanted = [folder if "lock" in made else f"{folder}/lock"]
    if diagnosis.starts != "only reads":
        wanted += [*newest, *([folder] if made else [])]
        wanted += [] if "log" in made else [f"{folder}/log"]
    refusals = [files.refusal(path) for path in dict.fromkeys(wanted)]
    for refusal in filter(None, refusals):
        diagnosis.starts = "fails"
        text = f"{refusal.filename} can't be written by this user ({refusal.strerror})"
        diagnosis.complaints.append(Complaint("error", f"{text}: {advice(refusal)}"))


def _check_rest(files: Files, diagnosis: Diagnosis) -> None:
    """The reserve, what was cut, and the space that is left."""
    folder = diagnosis.folder
    add = diagnosis.complaints.append
    if not files.exists(f"{folder}/log/reserve"):
        text = f"{folder}/log/reserve is missing: a full disk could not be cleaned up; make room"
        add(Complaint("warning", f"{text}, and the next start makes it again"))
    kept = [name for name in files.list(f"{folder}/cut") if name != "lost+found"]
    if kept:
        text = f"{folder}/cut keeps what was cut off or set aside ({', '.join(kept[:5])})"
        add(Complaint("note", f"{text}: delete it when nobody wants to look at it any more"))
    total, free = files.space(folder)
    if total and free * 10 < total:
        text = f"{free:,} bytes are free of {total:,}: make room before the broker refuses writes"
        add(Complaint("warning", text))


def _set_aside(files: Files, path: str, folder: str) -> str:
    files.make_folder(folder)
    target = f"{folder}/{os.path.basename(path)}"
    number = 1
    while files.exists(target):
        number += 1
        target = f"{folder}/{os.path.basename(path)}-{number}"
    files.rename(path, target)
    for one in (folder, os.path.dirname(path)):
        files.sync_folder(one)
    return target
