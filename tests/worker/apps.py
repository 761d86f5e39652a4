"""The application of the worker processes: `python -m tests.worker.apps URL FOLDER SETTINGS`.

Its tasks meet the tests in a folder: a line in `starts` for every start of a handler, a file
`NAME.go` that lets a waiting one go on. Events are written to stdout, one JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lien
import lien.clock
from lien.worker import Event, Settings, Worker

_NEVER = threading.Event()
_STEP = 0.02


class Folder:
    """Where handlers and tests meet; what is written survives SIGKILL."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, name: str, line: object) -> None:
        """Append one line, whole even among many writers."""
        fd = os.open(self.path / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)

    def notes(self, name: str) -> list[str]:
        path = self.path / name
        return path.read_text().splitlines() if path.exists() else []

    def allow(self, name: str) -> None:
        (self.path / f"{name}.go").touch()

    def allowed(self, name: str) -> bool:
        return (self.path / f"{name}.go").exists()


def step() -> None:
    """Let some time pass in a thread."""
    _NEVER.wait(_STEP)


async def astep() -> None:
    """Let some time pass on a loop."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    timer = loop.call_later(_STEP, lambda: turn.done() or turn.set_result(None))
    try:
        await turn
    finally:
        timer.cancel()


def register(jobs: lien.Lien, folder: Folder) -> None:  # noqa: C901 - a list of tasks
    """The tasks."""

    def started(ctx: lien.Context) -> None:
        folder.note("starts", f"{ctx.job_id} {ctx.attempt} {os.getpid()}")

    @jobs.task
    def mark(n: int) -> None:
        folder.note("marks", n)

    @jobs.task
    async def amark(n: int) -> None:
        folder.note("marks", n)

    @jobs.task
    def hold(ctx: lien.Context, name: str) -> str:
        started(ctx)
        while not folder.allowed(name):
            step()
        return name

    @jobs.task
    async def ahold(ctx: lien.Context, name: str) -> str:
        started(ctx)
        while not folder.allowed(name):
            await astep()
        return name

    @jobs.task
    async def stubborn(ctx: lien.Context, name: str) -> None:
        started(ctx)
        while not folder.allowed(name):
            try:
                await astep()
            except asyncio.CancelledError:
                folder.note("refusals", ctx.job_id)

    @jobs.task
    async def blocks_the_loop(ctx: lien.Context, name: str) -> None:
        started(ctx)
        while not folder.allowed(name):
            step()

    @jobs.task
    def spins(ctx: lien.Context, name: str) -> None:
        started(ctx)
        turns = 0
        while turns % 100_000 or not folder.allowed(name):
            turns += 1

    @jobs.task(retry=lien.Backoff(base=0.0, cap=0.0))
    def kills(ctx: lien.Context) -> None:
        started(ctx)
        os.kill(os.getpid(), signal.SIGKILL)

    @jobs.task(retry=lien.Backoff(base=0.0, cap=0.0))
    def works(ctx: lien.Context, n: int) -> int:
        started(ctx)
        if n % 5 == 0 and ctx.attempt == 1:
            raise lien.Retry("the first time never works")
        return n

    @jobs.task(retry=lien.Backoff(base=0.0, cap=0.0))
    async def aworks(ctx: lien.Context, n: int) -> int:
        started(ctx)
        await astep()
        return n


def tell(event: Event) -> None:
    """One event as a line."""
    fields = {key: value for key, value in asdict(event).items() if value is not None}
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main(url: str, path: str, settings: str) -> int:
    """Work until stopped."""
    options: dict[str, Any] = json.loads(settings)
    shift = options.pop("shift", 0)
    if shift:  # a host whose clock is wrong
        real = lien.clock.time.time_ns
        lien.clock.time.time_ns = lambda: real() + shift * 1_000_000_000
        lien.clock.time.time = lambda: lien.clock.time.time_ns() / 1e9
    startup = options.pop("startup", None)
    if "queues" in options:
        options["queues"] = tuple(options["queues"])
    jobs = lien.Lien(url)
    register(jobs, Folder(Path(path)))
    if startup is not None:
        task = jobs.tasks["mark"]
        task.using(unique=startup or None).enqueue(n=os.getpid())
    try:
        code = Worker(jobs, Settings(**options), hooks=(tell,)).run()
    finally:
        jobs.close()
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
