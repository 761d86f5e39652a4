"""A small shop whose receipts are sent by jobs. Run as a program, it is one of its workers."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
from contextlib import closing

import lien
from lien import clock
from lien.demo.tables import Connection, ask, connect, run
from lien.worker import Event, Settings, Worker

URL = os.environ.get("LIEN_URL", "")
SCHEMA = os.environ.get("LIEN_SCHEMA")
SOON = lien.Backoff(base=0.2, cap=0.5)
LEASE = 2.0
_PRINTER_PATIENCE = 45.0

jobs = lien.Lien(URL, schema=SCHEMA)

# ── what the shop does ──


def place_order(connection: Connection, order_id: int, cents: int, *, slow_printer: bool = False) -> int:
    """Write an order and its receipt job in the caller's transaction: both commit, or neither."""
    write_order(connection, order_id, cents)
    task = print_receipt if slow_printer else send_receipt
    return task.using(connection).enqueue(order_id=order_id).id


def write_order(connection: Connection, order_id: int, cents: int) -> None:
    """Write an order."""
    run(connection, "INSERT INTO shop_order (id, cents) VALUES (?, ?)", order_id, cents)


@jobs.task(queue="receipts", timeout=30, retry=SOON)
def send_receipt(ctx: lien.Context, order_id: int) -> None:
    """Send the receipt of an order."""
    with closing(connect(URL, SCHEMA)) as connection:
        note_start(connection, ctx, order_id)
        note_receipt(connection, ctx, order_id)


@jobs.task(queue="receipts", timeout=60, retry=SOON)
def print_receipt(ctx: lien.Context, order_id: int) -> None:
    """Print it: the first try takes until somebody has seen to the printer."""
    with closing(connect(URL, SCHEMA)) as connection:
        note_start(connection, ctx, order_id)
        if ctx.attempt == 1:
            wait_for_printer(connection, order_id)
        note_receipt(connection, ctx, order_id)


@jobs.task(queue="receipts", retry=SOON)
def mail_receipt(ctx: lien.Context, order_id: int) -> None:
    """Mail it: the server refuses the first two tries."""
    with closing(connect(URL, SCHEMA)) as connection:
        note_start(connection, ctx, order_id)
        if ctx.attempt <= 2:  # noqa: PLR2004 - see above
            raise ConnectionError("421 the mail server is busy, try again later")
        note_receipt(connection, ctx, order_id)


@jobs.task(queue="catalogs", max_lost=3, retry=lien.Backoff(base=0.05, cap=0.05))
def render_catalog(ctx: lien.Context) -> None:
    """Poison: whichever process runs this dies of it."""
    with closing(connect(URL, SCHEMA)) as connection:
        note_start(connection, ctx, None)
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.task(queue="receipts")
def remind_customer(ctx: lien.Context) -> None:
    """Ask for a review; in this story it is cancelled before its time."""
    with closing(connect(URL, SCHEMA)) as connection:
        note_start(connection, ctx, None)


# ── what its handlers write ──


def note_receipt(connection: Connection, ctx: lien.Context, order_id: int) -> None:
    """Write the receipt, unless an attempt before this one has done it."""
    run(
        connection,
        "INSERT INTO receipt (order_id, job_id, attempt, fence) VALUES (?, ?, ?, ?) ON CONFLICT (order_id) DO NOTHING",
        order_id,
        ctx.job_id,
        ctx.attempt,
        ctx.fence,
    )
    connection.commit()


def note_start(connection: Connection, ctx: lien.Context, order_id: int | None) -> None:
    """Log that a handler has started, and in which worker."""
    run(
        connection,
        "INSERT INTO job_start (job_id, attempt, order_id, fence, worker) VALUES (?, ?, ?, ?, ?)",
        ctx.job_id,
        ctx.attempt,
        order_id,
        ctx.fence,
        sys.argv[1],  # the worker's name
    )
    connection.commit()


def wait_for_printer(connection: Connection, order_id: int) -> None:
    """Come back when the printer is ready."""
    deadline = clock.monotonic() + _PRINTER_PATIENCE
    while not ask(connection, "SELECT 1 FROM printer_ready WHERE order_id = ?", order_id):
        if clock.monotonic() > deadline:
            raise TimeoutError("nobody has seen to the printer")
        clock.sleep(0.05)


# ── the worker ──


def main(name: str, queue: str) -> int:
    """Work on one queue until told to stop."""
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    settings = Settings(
        queues=(queue,),
        concurrency=4,
        lease=LEASE,
        grace=5.0,
        identity=f"{name}:{os.getpid()}:{secrets.token_hex(4)}",
    )
    return Worker(jobs, settings, hooks=(_tell,)).run()


def _tell(event: Event) -> None:
    """Pass an event on to the demo, as one line of JSON."""
    told = {"what": event.what, "job_id": event.job_id, "attempt": event.attempt}
    os.write(1, json.dumps(told).encode() + b"\n")


def _end_with_the_demo() -> None:
    """Standard input ends when the demo does, however it does: then all workers end, stopped ones too."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
