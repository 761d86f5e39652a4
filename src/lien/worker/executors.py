"""Where handlers run: coroutines on an event loop in a thread of its own, plain functions on a pool of threads.

Neither the pump nor the lease thread ever runs a handler, so a handler that blocks starves nothing but its own slot
(and, if it blocks the event loop, the other coroutines: their leases are kept all the same).
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from lien import clock
from lien.codec import Codec, as_object
from lien.model import Ack
from lien.task import Task
from lien.worker.events import logger
from lien.worker.held import Cause, Running
from lien.worker.outcome import raised, returned

_EAGER = sys.version_info >= (3, 12)

Report = Callable[[Running, Ack | None], None]


class Executor:
    """Runs claims and reports how each one ended.

    Args:
        tasks: the registered tasks, by name.
        codec: reads arguments and writes results.
        report: called once for each handler that ended, from any thread; it must be quick.
        began: called before each handler starts, if anybody wants to know.
        leave: awaited on the event loop when it ends.
        threads: the most plain handlers that run at once.
    """

    def __init__(
        self,
        tasks: dict[str, Task[..., Any]],
        codec: Codec,
        report: Report,
        began: Callable[[Running], None] | None,
        leave: Callable[[], Coroutine[Any, Any, None]],
        threads: int,
    ) -> None:
        self._tasks = tasks
        self._codec = codec
        self._report = report
        self._began = began
        self._leave = leave
        self._inbox: queue.SimpleQueue[Running | None] = queue.SimpleQueue()
        self._max_threads = threads
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._loop_thread = threading.Thread(target=self._run_loop, name="lien-loop", daemon=True)
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_at = float("inf")
        self._running: set[Running] = set()
        self._stopping = False

    def start(self) -> None:
        """Start the event loop's thread."""
        self._loop = asyncio.new_event_loop()
        self._loop_thread.start()

    def submit(self, batch: list[Running]) -> None:
        """Run a batch of claims; called by the pump."""
        now = clock.monotonic()
        soonest = float("inf")
        coroutines = []
        for running in batch:
            claim = running.claim
            running.timeout_at = now + claim.timeout
            self._running.add(running)
            if self._tasks[claim.task].is_async:
                running.timeout_at = float("inf")
                coroutines.append(running)
            else:
                soonest = min(soonest, running.timeout_at)
                self._to_thread(running)
        self._loop.call_soon_threadsafe(self._start, coroutines, soonest - now)

    def stop(self) -> None:
        """Stop the loop and let idle threads go; running handlers must have been dealt with before."""
        self._stopping = True
        for _ in self._threads:
            self._inbox.put(None)
        if self._loop_thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join(1.0)
        if not self._loop_thread.is_alive() and not self._loop.is_closed():
            self._loop.close()

    # ── coroutines ──

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopping:
            try:
                self._loop.run_forever()
            except BaseException:  # noqa: BLE001 - logged, and the worker goes on
                # A SystemExit of a task that some handler left behind, for example: it ends that task, not the worker.
                logger.exception("something stopped the event loop of the handlers; it goes on")
        leftover = asyncio.all_tasks(self._loop)
        for task in leftover:
            task.cancel()
        if leftover:
            self._loop.run_until_complete(asyncio.wait(leftover, timeout=0.5))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._leave())

    def _start(self, coroutines: list[Running], soonest: float) -> None:
        """On the loop: one hand-over for a whole batch."""
        self._schedule_sweep(soonest)
        for running in coroutines:
            self._spawn(running)

    def _spawn(self, running: Running) -> None:
        if _EAGER:
            # A coroutine that never suspends is over when this returns, without a turn of the loop.
            task = asyncio.Task(self._coroutine(running), loop=self._loop, eager_start=True)  # type: ignore[call-arg,unused-ignore]
        else:
            task = self._loop.create_task(self._coroutine(running))

        running.task = task
        if running.cause is not None:  # it was to be stopped before there was anything to cancel
            running.cancel()

    async def _coroutine(self, running: Running) -> None:
        if not running.begin():
            self._running.discard(running)
            return
        running.began_at = now = clock.monotonic()
        # From here, not from the hand-over: another handler may have held the loop meanwhile.
        running.timeout_at = now + running.claim.timeout
        if running.timeout_at < self._sweep_at:
            self._schedule_sweep(running.claim.timeout)
        try:
            if self._began is not None:
                self._began(running)
            task = self._tasks[running.claim.task]
            args, kwargs = task.arguments(as_object(self._codec.decode(running.claim.args)), running.context)
            ack: Ack | None = returned(running, await task.function(*args, **kwargs), self._codec)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is an outcome
            ack = raised(running, error)
        running.ended = True
        self._running.discard(running)
        self._report(running, ack)

    # ── timeouts ──

    def _schedule_sweep(self, delay: float) -> None:
        """One timer for all: it is moved only when an earlier deadline comes."""
        if delay == float("inf"):
            return
        at = clock.monotonic() + delay
        if self._sweep is not None:
            if self._sweep_at <= at:
                return
            self._sweep.cancel()
        self._sweep_at = at
        self._sweep = self._loop.call_later(max(delay, 0.0), self._sweep_timeouts)

    def _sweep_timeouts(self) -> None:
        self._sweep, self._sweep_at = None, float("inf")
        now = clock.monotonic()
        soonest = float("inf")
        for running in self._running.copy():
            if running.timeout_at <= now:
                running.stop(Cause.TIMEOUT)
            else:
                soonest = min(soonest, running.timeout_at)
        self._schedule_sweep(soonest - now)

    # ── threads ──

    def _to_thread(self, running: Running) -> None:
        # Threads of our own rather than concurrent.futures: its threads are joined when the interpreter exits, so
        # one stuck handler would keep a drained worker from ever going away.
        self._inbox.put(running)
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._max_threads:
            thread = threading.Thread(target=self._thread, name=f"lien-job-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _thread(self) -> None:
        while True:
            running = self._inbox.get()
            if running is None:
                return
            if running.begin():
                running.began_at = clock.monotonic()
                ack = self._call(running)
                running.ended = True
                self._report(running, ack)
            self._running.discard(running)
            self._idle.release()

    def _call(self, running: Running) -> Ack | None:
        try:
            if self._began is not None:
                self._began(running)
            task = self._tasks[running.claim.task]
            args, kwargs = task.arguments(as_object(self._codec.decode(running.claim.args)), running.context)
            return returned(running, task.function(*args, **kwargs), self._codec)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is an outcome
            return raised(running, error)
