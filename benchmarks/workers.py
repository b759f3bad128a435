"""The controller's end of a client process."""

from __future__ import annotations

import queue
import subprocess
import threading
from pathlib import Path

import msgspec

from benchmarks.processes import log_end, stop
from benchmarks.results import Work

READY_TIMEOUT_S = 600.0
DONE_TIMEOUT_S = 600.0


class WorkerFailed(Exception):
    """A client process ended, or said nothing, before its job was done."""


class Worker:
    """A client process; see worker.py for what is said to it and what it answers."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._log = folder / "client.log"
        self._lines: queue.Queue[str | None] = queue.Queue()
        with self._log.open("ab") as errors:
            # In the checkout, where `benchmarks` can be imported.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                self._lines.put(line[1:].strip())
        self._lines.put(None)

    def await_ready(self) -> None:
        """Wait until it is set up and warm. Raises WorkerFailed."""
        self._await("ready", READY_TIMEOUT_S)

    def await_started(self) -> None:
        """Wait until its clock runs. Raises WorkerFailed."""
        self._await("started", DONE_TIMEOUT_S)

    def await_done(self) -> Work:
        """What it did. Raises WorkerFailed."""
        return msgspec.json.decode(self._await("done", DONE_TIMEOUT_S), type=Work)

    def _await(self, word: str, timeout_s: float) -> str:
        while True:
            try:
                line = self._lines.get(timeout=timeout_s)
            except queue.Empty:
                raise WorkerFailed(f"not {word} after {timeout_s:.0f} s") from None
            if line is None:
                raise WorkerFailed(f"a client ended before it was {word}: {log_end(self._log)}")
            said, _, rest = line.partition(" ")
            if said == word:
                return rest

    def go(self) -> None:
        """Let it start."""
        self._say("go")

    def stop(self) -> None:
        """End a job that goes on until then."""
        self._say("stop")

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(f"a client ended early: {log_end(self._log)}") from None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        stop(self._process)
