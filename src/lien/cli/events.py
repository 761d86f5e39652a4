"""The worker's events as lines: for people on stderr, as JSON on stdout."""

from __future__ import annotations

import json
import threading
from dataclasses import fields
from typing import Any

import click

from lien.cli.invocation import Invocation
from lien.cli.text import duration, line, now, stamp
from lien.worker.events import Event, What

_SIGNS = {
    What.STARTED: ("▸", None),
    What.SUCCEEDED: ("✓", "green"),
    What.RETRYING: ("↻", "yellow"),
    What.FAILED: ("✗", "red"),
    What.SNOOZED: ("⏲", None),
    What.RELEASED: ("↩", None),
    What.CANCELLED: ("⊘", "yellow"),
    What.STALE: ("!", "yellow"),
    What.LOST: ("!", "yellow"),
    What.REAPED: ("♻", "yellow"),
    What.PARKED: ("‖", "yellow"),
    What.READY: ("●", "green"),
    What.DRAINING: ("…", None),
    What.STOPPED: ("■", None),
    What.DISCONNECTED: ("!", "red"),
    What.RECONNECTED: ("●", "green"),
}
_WORDS = {
    What.STARTED: "started",
    What.RETRYING: "failed",
    What.FAILED: "failed for good",
    What.SNOOZED: "snoozed",
    What.RELEASED: "given back",
    What.CANCELLED: "cancelled",
    What.STALE: "stale: somebody else has the job now, nothing was changed",
    What.LOST: "lease lost: the handler is told to stop",
    What.REAPED: "taken back from a silent worker",
    What.PARKED: "parked",
    What.READY: "ready",
    What.DRAINING: "draining",
    What.STOPPED: "stopped",
    What.DISCONNECTED: "database lost",
    What.RECONNECTED: "database is back",
}


class Teller:
    """A hook that writes each event; called from several threads, it never lets two lines mix.

    A reader that went away stops the talk, not the worker.
    """

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._lock = threading.Lock()
        self._muted = False

    def __call__(self, event: Event) -> None:
        """Write one event."""
        if self._muted or (event.what is What.STARTED and not self._wants_all):
            return
        try:
            with self._lock:
                if self._invocation.json:
                    click.echo(json.dumps(self._document(event)))
                else:
                    click.echo(self.text(event), err=True, color=self._invocation.color)
        except (OSError, ValueError):  # a closed pipe or file
            self._muted = True

    @property
    def _wants_all(self) -> bool:
        return self._invocation.verbose or self._invocation.json

    def _document(self, event: Event) -> dict[str, Any]:
        document: dict[str, Any] = {"at": stamp(now())}
        for field in fields(event):
            value = getattr(event, field.name)
            if value is None:
                continue
            document[field.name] = str(value) if field.name in {"what", "job_id"} else value
        if event.error is not None:
            document["error"] = self._invocation.scrub(event.error)
        return document

    def text(self, event: Event) -> str:
        """The event as one line: ``✓ send_email 17  48 ms  (attempt 1/20)``."""
        sign, color = _SIGNS.get(event.what, ("·", None))
        parts = [" ".join(filter(None, (click.style(sign, fg=color), _job(event))))]
        if event.seconds is not None:
            parts.append(duration(event.seconds))
        if event.attempt is not None:
            most = f"/{event.max_failures}" if event.max_failures is not None else ""
            parts.append(f"(attempt {event.attempt}{most})")
        word = _WORDS.get(event.what, "")
        if event.count is not None and event.what is not What.SUCCEEDED:
            word += f" ({event.count})"
        if event.again_in is not None:
            word += f", again in {duration(event.again_in)}"
        if word:
            parts.append(word)
        text = (" " if event.job_id is None and event.task is None else "  ").join(parts)
        return f"{text}: {line(self._invocation.scrub(event.error))}" if event.error else text


def _job(event: Event) -> str:
    task = line(event.task) if event.task is not None else None
    return " ".join(filter(None, (task, None if event.job_id is None else str(event.job_id))))
