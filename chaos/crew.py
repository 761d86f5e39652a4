"""The processes of a run: workers that are replaced when they die, and producers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from chaos.arena import Arena
from chaos.checker import Drain
from chaos.settings import ROOT
from lien import clock


@dataclass(slots=True)
class Member:
    """One process with its name and the file it logs to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    stopped_at: int = 0
    well_since: int = 0

    @property
    def ready(self) -> bool:
        """Whether it has begun to work."""
        return self.log.exists() and self.log.stat().st_size > 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a process that has ended meanwhile gets none."""
        if self.process.poll() is None:
            self.process.send_signal(number)


@dataclass(slots=True)
class Crew:
    """All processes of one run; every process here was started here."""

    arena: Arena
    seed: int
    size: int
    workers: list[Member] = field(default_factory=list)
    producers: list[Member] = field(default_factory=list)
    drains: list[Drain] = field(default_factory=list)
    outages: list[tuple[int, int]] = field(default_factory=list)
    well: list[tuple[int, int]] = field(default_factory=list)
    """From when to when some worker worked without being hurt: then it had to reap."""
    hurt_at: int = 0
    """When connections or the database were last hurt."""
    deaths: int = 0
    """Workers that ended without being asked: a handler killed them."""
    crashed: list[str] = field(default_factory=list)
    _count: int = 0

    def hire(self) -> Member:
        """Start one more worker."""
        self._count += 1
        member = self._start("chaos.workerproc", f"chaos-w{self._count}", [])
        self.workers.append(member)
        return member

    def produce(self, number: int, jobs: int, seconds: float, poison: int) -> None:
        """Start a producer."""
        name = f"chaos-p{number}"
        arguments = [str(jobs), str(seconds), str(poison), str(self.seed * 100 + number)]
        self.producers.append(self._start("chaos.producer", name, arguments))

    def _start(self, module: str, name: str, arguments: list[str]) -> Member:
        log = self.arena.folder / f"{name}.jsonl"
        command = [sys.executable, "-m", module, self.arena.url, name, *arguments, str(log)]
        with (self.arena.folder / "stderr").open("ab") as stderr:
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=stderr)
        return Member(name, process, log)

    def keep_up(self) -> None:
        """Replace the dead."""
        for member in list(self.workers):
            code = member.process.poll()
            if code is None:
                if not member.well_since and not member.stopped_at and member.ready:
                    member.well_since = clock.host_time_us()
            else:
                self.workers.remove(member)
                self._note_stop_over(member)
                # It was seen late, perhaps: its last word is the last that is known of it.
                self._hurt(member, round(member.log.stat().st_mtime * 1_000_000) if member.ready else 0)
                if code == -signal.SIGKILL:
                    self.deaths += 1
                else:
                    self.crashed.append(f"{member.name} ended by itself with code {code}")
        while len(self.workers) < self.size:
            self.hire()

    @property
    def moving(self) -> list[Member]:
        """Workers that are at work, and not stopped just now."""
        return [m for m in self.workers if m.ready and not m.stopped_at and m.process.poll() is None]

    def kill(self, member: Member) -> None:
        """SIGKILL."""
        self._hurt(member, clock.host_time_us())
        member.signal(signal.SIGKILL)
        member.process.wait()
        self.workers.remove(member)
        self.keep_up()

    def freeze(self, member: Member, seconds: float) -> None:
        """SIGSTOP for a while: to everybody else it is as if it had died.

        SIGCONT comes from a thread: this one may come to wait for a lock that the stopped process holds.
        """
        member.stopped_at = clock.host_time_us()
        self._hurt(member, member.stopped_at)
        member.signal(signal.SIGSTOP)
        timer = threading.Timer(seconds, self._thaw, [member])
        timer.daemon = True
        timer.start()

    def _thaw(self, member: Member) -> None:
        member.signal(signal.SIGCONT)
        self._note_stop_over(member)

    @property
    def frozen(self) -> bool:
        """Whether some worker stands still."""
        return any(member.stopped_at for member in self.workers)

    def _note_stop_over(self, member: Member) -> None:
        if member.stopped_at:
            # It may have stood still in the middle of a transaction: rows or the whole file were locked.
            self.outages.append((member.stopped_at, clock.host_time_us()))
            member.stopped_at = 0

    def drain(self, member: Member, patience: float) -> None:
        """SIGTERM, and see how it goes; a worker that does not end is killed."""
        asked_at = clock.host_time_us()
        self._hurt(member, asked_at)
        member.signal(signal.SIGTERM)
        try:
            code = member.process.wait(patience)
        except subprocess.TimeoutExpired:
            member.signal(signal.SIGKILL)
            member.process.wait()
            code = -1  # not its own doing, and too late in any case
        exited_at = clock.host_time_us()
        self.workers.remove(member)
        if code == -signal.SIGKILL:
            self.deaths += 1  # a handler killed it on the way out
            return
        self.drains.append(Drain(member.name, asked_at, exited_at, code, self.hurt_at >= asked_at - 5_000_000))

    def _hurt(self, member: Member, at: int) -> None:
        """It was well until then; when it is well again is seen later."""
        if member.well_since and at > member.well_since:
            self.well.append((member.well_since, at))
        member.well_since = 0

    def hurt(self, names: Iterable[str] | None = None) -> None:
        """The connections of some workers, or of all, were cut just now."""
        self.hurt_at = clock.host_time_us()
        for member in self.workers:
            if names is None or member.name in names:
                self._hurt(member, self.hurt_at)

    def drain_all(self, patience: float) -> None:
        """The orderly end: all that are at work are drained."""
        for member in list(self.workers):
            until = clock.monotonic() + 15.0
            while not member.ready and member.process.poll() is None and clock.monotonic() < until:
                clock.sleep(0.05)
            if member.process.poll() is None:
                self.drain(member, patience)

    def end(self) -> None:
        """Whatever still runs is killed."""
        for member in [*self.workers, *self.producers]:
            if member.process.poll() is None:
                os.kill(member.process.pid, signal.SIGKILL)
            member.process.wait()

    def stderr(self) -> str:
        """What the processes complained about."""
        path = self.arena.folder / "stderr"
        return path.read_text(errors="replace") if path.exists() else ""
