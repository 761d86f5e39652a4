"""The worker processes: started, killed, stopped, continued and drained with real signals."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lien import clock


class Told(NamedTuple):
    """An event that a worker has told."""

    worker: str
    what: str
    job_id: int | None
    attempt: int | None


class Hand:
    """One worker process. Its standard input is a pipe of ours that tells it when we are gone."""

    def __init__(self, name: str, work: str, group: int, log: BinaryIO) -> None:
        self.name = name
        self.work = work
        self.expected_to_die = False
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lien.demo.shop", name, work],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            process_group=group,
        )

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self.process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def stop(self) -> None:
        """Send it SIGSTOP and see that it stands still: its threads do not stop all at once."""
        self.send(signal.SIGSTOP)
        with contextlib.suppress(ChildProcessError):  # it has ended
            _, status = os.waitpid(self.process.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                self.process.returncode = os.waitstatus_to_exitcode(status)


class Crew:
    """All workers, in one process group of their own: Ctrl-C reaches the demo alone, which then ends them.

    Args:
        log: the file to which the workers' standard error goes.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._file = log.open("ab")
        self._group = 0
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []
        self.hands: dict[str, Hand] = {}

    def hire(self, name: str, work: str) -> Hand:
        """Start a worker for one queue."""
        hand = self.hands[name] = Hand(name, work, self._group, self._file)
        self._group = self._group or hand.process.pid
        reader = threading.Thread(target=self._read, args=(hand,), daemon=True)
        reader.start()
        self._readers.append(reader)
        return hand

    def _read(self, hand: Hand) -> None:
        for line in hand.process.stdout or ():
            with contextlib.suppress(ValueError):  # half a line: its writer was killed
                told: dict[str, Any] = json.loads(line)
                self._told.put(Told(hand.name, told["what"], told["job_id"], told["attempt"]))

    def news(self) -> list[Told]:
        """What the workers have told since the last call."""
        news = []
        with contextlib.suppress(queue.Empty):
            while True:
                news.append(self._told.get_nowait())
        return news

    @property
    def alive(self) -> list[Hand]:
        """The workers that have not ended."""
        return [hand for hand in self.hands.values() if hand.exit_code is None]

    def drain(self, seconds: float) -> bool:
        """Ask all to finish and go; whether all went in time."""
        for hand in self.alive:
            hand.send(signal.SIGTERM)
        gone = self._wait(seconds)
        for reader in self._readers:
            reader.join(1.0)
        return gone

    def end(self) -> None:
        """Kill those that are left, stopped ones too; nothing of them remains."""
        for hand in self.alive:
            hand.send(signal.SIGKILL)
        self._wait(5.0)
        for hand in self.hands.values():
            for pipe in (hand.process.stdin, hand.process.stdout):
                if pipe is not None:
                    pipe.close()
        self._file.close()

    def _wait(self, seconds: float) -> bool:
        deadline = clock.monotonic() + seconds
        for hand in self.alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                hand.process.wait(max(deadline - clock.monotonic(), 0.0))
        return not self.alive

    def last_words(self, lines: int = 15) -> str:
        """The end of the workers' standard error."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
