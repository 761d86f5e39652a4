"""The lease thread: renews claims, passes on cancel requests, takes back what silent workers left.

It is a thread with a connection of its own, so neither a blocked event loop nor handlers that hold every other
connection can starve it. It decides nothing from clocks of other machines: expiry is judged by the database.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from lien import clock
from lien.commands import run
from lien.drivers.classify import Kind, classify, first_line, from_driver
from lien.drivers.contract import OwnDriver
from lien.errors import DatabaseError
from lien.model import Held, Renewal
from lien.store import Store
from lien.worker.events import Event, Stream, What, logger
from lien.worker.held import Cause, HeldClaims, Running
from lien.worker.settings import Settings

_CANCEL_POLL = 2.0
_REAP_BATCH = 100
_EXPIRE_BATCH = 500
_RENEWALS = 3
_UPKEEP_EVERY = 3600.0
_MAX_BACKOFF = 5.0


class LeaseThread:
    """Keeps the leases of this process until told to stop.

    Args:
        reaped: called when jobs were put back, so that the pump looks.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        held: HeldClaims,
        stream: Stream,
        reaped: Callable[[], None],
    ) -> None:
        self._store = store
        self._engine = store.engine
        self._settings = settings
        self._held = held
        self._stream = stream
        self._reaped = reaped
        self._stop = threading.Event()
        self._tick = min(settings.lease / 12, 1.0)
        self._healthy_since = float("inf")
        self._worked = False
        self._cancel_poll_at = 0.0
        self._reap_at = 0.0
        self._upkeep_at = 0.0

    def stop(self) -> None:
        """End soon."""
        self._stop.set()

    def run(self) -> None:
        """The thread's main."""
        failures = 0
        while not self._stop.is_set():
            driver = None
            try:
                driver = self._store.connect()
                self._healthy_since = clock.monotonic()
                self._worked = False
                self._keep(driver)
            except Exception as error:
                if not from_driver(error) and not isinstance(error, DatabaseError):
                    raise
                failures = 1 if self._worked else failures + 1
                if failures == 1:
                    logger.warning("leases cannot be renewed just now: %s", first_line(error))
                self._give_up_late()
                pause = min(_MAX_BACKOFF, self._settings.lease / 10, 0.05 * 2.0**failures)
                self._stop.wait(pause * (0.5 + random.random() / 2))  # noqa: S311 - not a secret
            finally:
                if driver is not None:
                    driver.close()

    def _keep(self, driver: OwnDriver) -> None:
        last, last_host = clock.monotonic(), clock.host_time_us()
        while not self._stop.is_set():
            now, host = clock.monotonic(), clock.host_time_us()
            stepped = abs((host - last_host) / 1e6 - (now - last))
            if now - last > self._settings.lease / 2 or stepped > self._settings.lease / 4:
                # This process stood still (stopped, or the machine slept), or the host's clock was set, which is the
                # database's clock on SQLite: what leases say is worth nothing before everybody has renewed.
                self._healthy_since = now
                for running in self._held.all():
                    running.renew_at = 0.0
            last, last_host = now, host
            try:
                self._beat(driver, now)
            except Exception as error:
                if classify(error) is not Kind.RETRYABLE:
                    raise
                self._healthy_since = clock.monotonic()  # locks could not be had: others may be waiting as well
                self._give_up_late()
            self._stop.wait(self._tick)

    def _beat(self, driver: OwnDriver, now: float) -> None:
        self._renew(driver, now)
        self._poll_cancels(driver, now)
        # Only a worker that was well for one full lease takes back the jobs of others: after an outage of the
        # database everybody's lease is over, and everybody renews first.
        fresh = clock.monotonic()
        if fresh - now > self._settings.lease / 4:
            self._healthy_since = fresh  # the database stood still just now: for others as well
        if now >= self._reap_at and fresh - self._healthy_since >= self._settings.lease:
            self._reap_at = now + self._settings.reap_every * (0.8 + random.random() * 0.4)  # noqa: S311
            self._reap(driver)
        if now >= self._upkeep_at:
            self._upkeep_at = now + _UPKEEP_EVERY
            threading.Thread(target=self._upkeep, name="lien-upkeep", daemon=True).start()

    def _renew(self, driver: OwnDriver, now: float) -> None:
        self._drop_superseded()
        for _ in range(_RENEWALS):
            due = {r.claim.id: r for r in self._held.all() if r.renew_at <= now and not r.ended}
            if not due:
                break
            sent = clock.monotonic()
            proofs = [Held(r.claim.id, r.claim.token) for r in due.values()]
            self._heed(due, run(self._engine.renew(proofs, self._settings.lease), driver), sent)
            # An answer that took longer than the lease confirms nothing for now: ask again at once.
            now = clock.monotonic()
        self._give_up_late()

    def _heed(self, due: dict[int, Running], answer: Renewal, sent: float) -> None:
        settings = self._settings
        for id, running in due.items():
            if id in answer.renewed:
                running.deadline = sent + settings.lease - settings.margin
                running.renew_at = sent + settings.renew_every
                if id in answer.cancel_requested:
                    running.stop(Cause.CANCELLED)
            elif id in answer.locked:
                running.renew_at = clock.monotonic() + min(1.0, settings.lease / 10)
            elif not running.ended and self._held.holds(running):  # no acknowledgement is on its way
                self._lost(running, "the claim is no longer this worker's")
        self._worked = self._worked or bool(answer.renewed)

    def _drop_superseded(self) -> None:
        """Of two claims of one job in this process the older one is lost: the newer one could not exist otherwise."""
        newest: dict[int, Running] = {}
        for running in self._held.all():
            other = newest.setdefault(running.claim.id, running)
            if other is not running:
                older, newer = sorted((other, running), key=lambda r: r.claim.attempt)
                newest[running.claim.id] = newer
                if not older.context.lost and not older.ended:
                    self._lost(older, "this worker has claimed the job again")

    def _give_up_late(self) -> None:
        """Claims whose lease may be over, unconfirmed: their handlers are told to stop; an ack may still be tried."""
        now = clock.monotonic()
        for running in self._held.all():
            if running.deadline <= now and not running.context.lost and not running.ended:
                self._lost(running, "the lease could not be renewed in time")

    def _lost(self, running: Running, why: str) -> None:
        running.renew_at = float("inf")
        running.stop(Cause.LOST)
        claim = running.claim
        self._stream.emit(
            Event(
                what=What.LOST,
                job_id=claim.id,
                task=claim.task,
                queue=claim.queue,
                attempt=claim.attempt,
                error=why,
            )
        )

    def _poll_cancels(self, driver: OwnDriver, now: float) -> None:
        if now < self._cancel_poll_at:
            return
        self._cancel_poll_at = now + min(_CANCEL_POLL, self._settings.renew_every)
        if held := {r.claim.id: r for r in sorted(self._held.all(), key=lambda r: r.claim.attempt)}:
            for id in run(self._engine.cancel_requests(list(held)), driver):
                held[id].stop(Cause.CANCELLED)

    def _reap(self, driver: OwnDriver) -> None:
        """One batch of each: renewals come in between."""
        taken = run(self._engine.reap(_REAP_BATCH), driver)
        for job in taken:
            what = "" if job.reason is None else f", failed ({job.reason})"
            why = f"its worker {job.worker} fell silent{what}"
            self._stream.emit(Event(what=What.REAPED, job_id=job.id, attempt=job.attempt, error=why))
        if taken:
            self._reaped()
        if run(self._engine.expire(_EXPIRE_BATCH), driver) == _EXPIRE_BATCH or len(taken) == _REAP_BATCH:
            self._reap_at = 0.0
        self._worked = True

    def _upkeep(self) -> None:
        """On a thread and a connection of its own: it may wait for locks."""
        driver = None
        try:
            driver = self._store.connect()
            run(self._engine.upkeep(), driver)
        except Exception as error:  # noqa: BLE001 - the next time, or another worker, will do it
            self._upkeep_at = clock.monotonic() + 60.0
            logger.warning("storage could not be looked after, trying again in a minute: %s", first_line(error))
        finally:
            if driver is not None:
                driver.close()
