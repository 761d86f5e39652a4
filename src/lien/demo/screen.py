"""What people see: the story as it goes on stderr; the timeline and the ledger on stdout."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import NamedTuple, TextIO

import click

from lien import clock
from lien.demo.ledger import Line, balances
from lien.model import AttemptRecord, JobRecord


class Scene(NamedTuple):
    """What became of one job that had an interesting time."""

    title: str
    job: JobRecord
    attempts: Sequence[AttemptRecord]


class Screen:
    """Live output; one line that is updated on a terminal, plain lines elsewhere.

    Args:
        color: None for a terminal only, and never when NO_COLOR is set; False for never.
    """

    def __init__(self, *, color: bool | None = None) -> None:
        self._color = False if os.environ.get("NO_COLOR") else color
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._since = clock.monotonic()
        self._shown = ""
        self._right, self._wrong = ("✓", "✗") if _can_write(sys.stdout, "✓✗") else ("ok", "NO")

    @property
    def seconds(self) -> float:
        """Since the start."""
        return clock.monotonic() - self._since

    def say(self, text: str) -> None:
        """Tell what has happened, in a line that stays."""
        self.clear()
        stamp = click.style(f"{self.seconds:5.1f} s", dim=True)
        click.echo(f"{stamp}  {text}", err=True, color=self._color)

    def progress(self, text: str) -> None:
        """Tell how far it is, in the one line that changes."""
        if not self._live or text == self._shown:
            return
        columns = shutil.get_terminal_size().columns - 1
        click.echo(f"\r\x1b[K{text[:columns]}", nl=False, err=True, color=True)
        self._shown = text

    def clear(self) -> None:
        """Remove that line."""
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True, color=True)
            self._shown = ""

    def timeline(self, scenes: list[Scene]) -> None:
        """What became of the interesting jobs, attempt by attempt."""
        self._print("")
        self._head("Timeline, in seconds since the first of these jobs")
        zero = min(scene.job.created_at for scene in scenes)
        for scene in scenes:
            self._print(f"  job {scene.job.id}: {scene.title}")
            for a in scene.attempts:
                begin, took = (a.started_at - zero, a.ended_at - a.started_at)
                outcome = _colored(str(a.outcome), f"{a.outcome:<11}")
                self._print(
                    f"    {begin.total_seconds():6.2f}  attempt {a.attempt}  {outcome}  "
                    f"after {took.total_seconds():4.2f}  worker {worker(a)}"
                )
            end = str(scene.job.state) + (f" ({scene.job.reason})" if scene.job.reason else "")
            self._print(f"            ended as {end}")

    def ledger(self, lines: list[Line]) -> None:
        """What must be true, and what is."""
        self._print("")
        width = max(len(line.name) for line in lines)
        self._head(f"{'Ledger, counted in the database':<{width + 2}}  expected  found")
        for line in lines:
            mark = (
                click.style(self._right, fg="green") if line.balances else click.style(self._wrong, fg="red", bold=True)
            )
            expected = f">= {line.expected}" if line.at_least else str(line.expected)
            self._print(f"{mark} {line.name:<{width}}  {expected:>8}  {line.found:>5}")
        self._print("")

    def verdict(self, lines: list[Line], look_on: str) -> None:
        """The end."""
        wrong = sum(not line.balances for line in lines)
        told = f"{wrong} of {len(lines)} lines do not balance." if wrong else "The books balance."
        self._print(f"{told} It took {self.seconds:.1f} s.")
        self._print(look_on)

    def document(self, lines: list[Line], scenes: list[Scene], kept: dict[str, str] | None) -> None:
        """All of it as one JSON document."""
        zero = min(scene.job.created_at for scene in scenes)
        ledger = [
            {
                "name": line.name,
                "expected": line.expected,
                "at_least": line.at_least,
                "found": line.found,
                "balances": line.balances,
            }
            for line in lines
        ]
        timeline = [
            {
                "title": scene.title,
                "job_id": str(scene.job.id),
                "state": scene.job.state,
                "reason": scene.job.reason,
                "attempts": [
                    {
                        "attempt": a.attempt,
                        "outcome": a.outcome,
                        "worker": worker(a),
                        "started": round((a.started_at - zero).total_seconds(), 3),
                        "ended": round((a.ended_at - zero).total_seconds(), 3),
                    }
                    for a in scene.attempts
                ],
            }
            for scene in scenes
        ]
        document = {
            "balances": balances(lines),
            "seconds": round(self.seconds, 1),
            "kept": kept,
            "ledger": ledger,
            "timeline": timeline,
        }
        click.echo(json.dumps(document, indent=2))

    def _head(self, text: str) -> None:
        self._print(click.style(text, bold=True))

    def _print(self, text: str) -> None:
        click.echo(text, color=self._color)


def worker(attempt: AttemptRecord) -> str:
    """The short name that a worker's identity begins with."""
    return attempt.worker.partition(":")[0]


def _colored(outcome: str, text: str) -> str:
    color = {"succeeded": "green", "lost": "red", "failed": "yellow"}.get(outcome)
    return click.style(text, fg=color)


def _can_write(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
