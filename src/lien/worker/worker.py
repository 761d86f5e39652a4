"""`Worker`: starts and stops the parts, listens to signals, drains. Nothing else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from lien import clock
from lien.context import Context
from lien.errors import UsageError
from lien.model import Claim
from lien.worker.events import Event, Hook, Stream, What, logger
from lien.worker.executors import Executor
from lien.worker.held import Cause, HeldClaims, Running
from lien.worker.leases import LeaseThread
from lien.worker.outcome import release, timed_out
from lien.worker.pump import Pump
from lien.worker.settings import Settings
from lien.worker.telling import about
from lien.worker.transaction import Block
from lien.worker.wake import WakeThread

if TYPE_CHECKING:
    from lien.queue import Lien

EXIT_OK = 0
EXIT_UNWRITTEN = 3
EXIT_IGNORED_CANCELLATION = 7

_FLUSH = 2.0
_SIGNAL_POLL = 0.1


class Worker:
    """Runs jobs of one `Lien` until it is told to stop.

    Args:
        jobs: the Lien whose tasks it knows.
        settings: how to work.
        hooks: called with every event, from the worker's threads; they must be quick.
    """

    def __init__(self, jobs: Lien, settings: Settings | None = None, hooks: tuple[Hook, ...] = ()) -> None:
        self.settings = settings or Settings()
        if not jobs.tasks:
            raise UsageError("no tasks are registered: import the modules that define them before the worker starts")
        self.queues = self.settings.queues or tuple(sorted({task.options.queue for task in jobs.tasks.values()}))
        self._jobs = jobs
        self._stream = Stream(hooks)
        self._held = HeldClaims()
        self._shutdown = threading.Event()
        self._hurry = threading.Event()
        self._signals = self._heeded = 0
        self._failed: BaseException | None = None
        self._namespace = ""
        store = jobs.store
        began = self._tell_started if self._stream.wanted else None
        self._pump = Pump(
            store,
            self.settings,
            self.queues,
            tuple(jobs.tasks),
            self._held,
            self._stream,
            self._accept,
            self._dry,
        )
        self._executor = Executor(
            jobs.tasks, jobs.codec, self._pump.report, began, store.leave_loop, self.settings.concurrency
        )
        self._leases = LeaseThread(store, self.settings, self._held, self._stream, self._pump.hint)
        self._wake = WakeThread(store, self._pump.hint, self._listening)
        self._threads: list[threading.Thread] = []

    def __repr__(self) -> str:
        return f"<Worker {self.settings.identity}: {len(self._held)}/{self.settings.concurrency} held>"

    def run(self, *, signals: bool = True) -> int:
        """Work until stopped, then drain.

        Args:
            signals: stop on SIGTERM and SIGINT; ignored outside the main thread, where only `stop` ends it.

        Returns:
            0 when every job was finished or given back, 7 when a handler ignored its cancellation, 3 when the database
            was away and the ends of some jobs are not written.

        Raises:
            BaseException: what a part of the worker died of, after draining.
            SchemaError: the tables are missing or behind.
            DatabaseUnavailable: the database cannot be reached at the start.
        """
        self._jobs.migrations.require()
        store = self._jobs.store
        self._namespace = store.run(store.engine.namespace)
        restore = self._listen_to_signals() if signals else None
        try:
            self._executor.start()
            self._start("lien-pump", self._pump.run)
            self._start("lien-leases", self._leases.run)
            self._start("lien-wake", self._wake.run)
            self._stream.emit(Event(what=What.READY))
            # A signal handler runs in the middle of whatever this thread does, so it only counts: to set an Event
            # there could wait for the lock that this thread holds just then.
            while not self._shutdown.wait(_SIGNAL_POLL):
                self._heed_signals()
            code = self._drain()
        finally:
            if restore is not None:
                restore()
        self._stream.emit(Event(what=What.STOPPED))
        if self._failed is not None:
            raise self._failed
        return code

    def stop(self) -> None:
        """Drain and end; a second call cancels what still runs. From any thread."""
        if self._shutdown.is_set():
            self._hurry.set()
        self._shutdown.set()

    # ── parts ──

    def _start(self, name: str, main: Callable[[], None]) -> None:
        def watched() -> None:
            try:
                main()
            except BaseException as error:  # noqa: BLE001 - no part dies unnoticed
                logger.critical("%s died: the worker drains and ends", name, exc_info=True)
                self._failed = error
                self._shutdown.set()

        thread = threading.Thread(target=watched, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, claims: list[Claim], sent: float) -> None:
        """The pump has claimed: hand the batch to the handlers. ``sent``: local seconds before the claim went out."""
        settings = self.settings
        deadline = sent + settings.lease - settings.margin
        renew_at = sent + settings.renew_every
        namespace, shutdown, opened = self._namespace, self._shutdown, partial(Block, self._jobs.store)
        batch = [Running(claim, Context(claim, namespace, shutdown, opened), deadline, renew_at) for claim in claims]
        self._held.add(batch)
        if shutdown.is_set():  # the claim was under way when the stop came
            for running in batch:
                self._give_back(running)
            return
        self._executor.submit(batch)

    def _tell_started(self, running: Running) -> None:
        self._stream.emit(about(What.STARTED, running.claim, running.claim.id, running.claim.attempt))

    def _listening(self, *, yes: bool) -> None:
        self._pump.listening = yes

    def _dry(self) -> None:
        self._shutdown.set()

    # ── the end ──

    def _drain(self) -> int:
        """Stop claiming; let handlers finish; cancel them; give back the rest."""
        settings = self.settings
        self._pump.stop_claiming()
        self._withdraw_unstarted()
        if len(self._held):
            wait = f"they have up to {settings.grace:g} s; a second signal cancels them at once"
            self._stream.emit(Event(what=What.DRAINING, count=len(self._held), error=wait))
        self._wait_empty(settings.grace, until=self._hurry)
        ignored = 0
        if len(self._held):
            for running in self._held.all():
                if not running.ended:
                    running.stop(Cause.SHUTDOWN)
            self._wait_empty(settings.cancel_grace)
            ignored = self._give_back_running()
        self._pump.stop()
        self._threads[0].join(_FLUSH)
        self._leases.stop()
        self._wake.stop()
        for thread in self._threads[1:]:
            thread.join(_FLUSH / 4)
        self._executor.stop()
        if unwritten := [running for running in self._held.all() if running.ended and running.cause is not Cause.LOST]:
            for running in unwritten:
                why = "the database is away, so its end is not written: it runs again when its lease is over"
                self._stream.emit(about(What.LOST, running.claim, running.claim.id, running.claim.attempt, error=why))
            return EXIT_UNWRITTEN
        return EXIT_IGNORED_CANCELLATION if ignored else EXIT_OK

    def _withdraw_unstarted(self) -> None:
        for running in self._held.all():
            self._give_back(running)

    def _give_back(self, running: Running) -> None:
        if running.withdraw():
            running.ended = True
            self._pump.report(running, release(running.claim, started=False))

    def _give_back_running(self) -> int:
        """Give back what handlers will not end; how many there were."""
        left = [running for running in self._held.all() if not running.ended and running.cause is not Cause.LOST]
        for running in left:
            claim = running.claim
            late = running.cause is Cause.TIMEOUT
            running.ended = True
            ignored = "its handler ignored its cancellation and may still be running"
            self._pump.report(running, timed_out(claim) if late else release(claim, started=True, error=ignored))
        return len(left)

    def _heed_signals(self) -> None:
        while self._heeded < self._signals:
            self._heeded += 1
            self.stop()

    def _wait_empty(self, seconds: float, until: threading.Event | None = None) -> None:
        deadline = clock.monotonic() + seconds
        while (left := deadline - clock.monotonic()) > 0:
            self._heed_signals()
            if self._held.empty.wait(min(left, 0.1)) or (until is not None and until.is_set()):
                return

    def _listen_to_signals(self) -> Callable[[], None] | None:
        if threading.current_thread() is not threading.main_thread():
            return None

        def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of handlers
            self._signals += 1

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}

        def restore() -> None:
            for number, handler in before.items():
                if handler is not None:  # None: it was not installed from Python
                    signal.signal(number, handler)

        return restore
