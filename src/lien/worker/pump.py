"""The pump: one thread that writes acknowledgements and claims the next jobs, both in one transaction.

Group commit comes by itself: what finished while one round trip ran goes into the next one. An acknowledgement never
depends on a claim: when the transaction of both fails, the acknowledgements are written alone, and the one that the
database will not store is found and written as a failure.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

from lien import clock
from lien.commands import run
from lien.drivers.classify import Kind, classify, first_line, from_driver
from lien.drivers.contract import OwnDriver
from lien.errors import DatabaseError
from lien.model import PRIORITIES, Ack, Claim, ClaimRequest, Cycle, Promote
from lien.store import Store
from lien.worker.events import Event, Stream, What
from lien.worker.finisher import Finisher
from lien.worker.held import HeldClaims, Running
from lien.worker.lanes import Lanes
from lien.worker.settings import Settings

_PROMOTE_BATCH = 500
_PROMOTE_EVERY = 0.05
_WHOLE_BATCH = 50
_PARK_BATCH = 1000
_UNPARK_BATCH = 500
_SLEEP_RECORD = 10.0
_MAX_BACKOFF = 10.0
_LAST_TRIES = 3
_BUSY_ROUNDS = 3
_POLL_WITHOUT_WAKEUP = 0.1


class Pump:
    """Claims into free slots and writes acks, until told to stop.

    Args:
        accept: takes a batch of claims with the local seconds before the claim was sent; hands them to handlers.
        tasks: names of the tasks this worker knows.
        dry: called when a look at everything found nothing to run and nothing is held.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - its collaborators
        self,
        store: Store,
        settings: Settings,
        queues: Sequence[str],
        tasks: Sequence[str],
        held: HeldClaims,
        stream: Stream,
        accept: Callable[[list[Claim], float], None],
        dry: Callable[[], None],
    ) -> None:
        self._store = store
        self._engine = store.engine
        self._settings = settings
        self._queues = tuple(queues)
        self._tasks = tuple(tasks)
        self._held = held
        self._stream = stream
        self._accept = accept
        self._dry = dry
        self._wake = threading.Event()
        self._claiming = True
        self._stopping = False
        self._hinted = False
        self._ill = self._was_well = False
        self._busy_rounds = 0
        self._lanes = Lanes(queues)
        self._finisher = Finisher(self._engine, held, stream, self._lanes.lower, self._busy)
        self._look_at = 0.0
        self._promote_floor: object = None
        self._full_promote_at = 0.0
        self._promote_at = 0.0
        self._next_due = float("inf")
        # Half of many slots at a time: while one half is on its way to the database, handlers run the other one.
        self._batch = max(settings.concurrency // 2, min(settings.concurrency, _WHOLE_BATCH))
        self._sleeping_until = 0.0
        self._orphans_at = 0.0
        self.orphan_tokens: deque[tuple[UUID, float]] = deque()
        self.listening = False

    # ── from other threads ──

    def report(self, running: Running, ack: Ack | None) -> None:
        """A handler has ended; its acknowledgement goes out with the next round trip."""
        self._finisher.report(running, ack)
        if not self._wake.is_set():
            self._wake.set()

    def hint(self) -> None:
        """Work may have come: look now."""
        self._hinted = True
        self._wake.set()

    def stop_claiming(self) -> None:
        """Write acknowledgements only."""
        self._claiming = False
        self._wake.set()

    def stop(self) -> None:
        """End as soon as what is done is written, or cannot be."""
        self._claiming = False
        self._stopping = True
        self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written."""
        return self._finisher.idle

    # ── the thread ──

    def run(self) -> None:
        """The thread's main: keep a connection and work on it; reconnect for ever, with backoff."""
        failures = 0
        while True:
            driver = None
            try:
                driver = self._store.connect()
                self._begin_session(driver)
                self._was_well = False
                if self._work(driver):
                    break
            except Exception as error:
                if not from_driver(error) and not isinstance(error, DatabaseError):
                    raise
                if driver is not None:
                    driver.close()
                if self._stopping and (self.idle or failures >= _LAST_TRIES):
                    return  # the leases cover what could not be written
                self._say_ill(error)
                failures = 1 if self._was_well else failures + 1
                self._was_well = False
                pause = min(_MAX_BACKOFF, 0.05 * 2.0 ** min(failures, 10)) * (0.5 + random.random() / 2)  # noqa: S311
                if self._stopping:
                    clock.sleep(min(pause, 0.1))
                else:
                    self._wait(pause, only_stop=True)
            finally:
                if driver is not None:
                    driver.close()

    def _say_ill(self, error: Exception) -> None:
        if not self._ill:
            self._ill = True
            self._stream.emit(Event(what=What.DISCONNECTED, error=first_line(error)))

    def _busy(self, error: Exception) -> None:
        """A lost race is nothing to tell; a row of them is."""
        self._busy_rounds += 1
        if self._busy_rounds == _BUSY_ROUNDS:
            self._say_ill(error)

    def _begin_session(self, driver: OwnDriver) -> None:
        self._lanes.reset()
        self._promote_floor = None
        self._look_at = 0.0
        self._sleeping_until = 0.0
        self._finisher.replay(driver)
        self.release_orphans(driver)
        while run(self._engine.unpark(self._tasks, _UNPARK_BATCH), driver) == _UNPARK_BATCH:
            pass

    def release_orphans(self, driver: OwnDriver) -> None:
        """Give back claims whose statement committed while the connection broke: nobody here runs them."""
        now = clock.monotonic()
        self._orphans_at = now + 1.0
        while self.orphan_tokens and self.orphan_tokens[0][1] < now:
            self.orphan_tokens.popleft()
        tokens = [token for token, _ in self.orphan_tokens]
        if tokens and (unheard := run(self._engine.orphans(tokens), driver)):
            self._finisher.write(driver, unheard)

    def _work(self, driver: OwnDriver) -> bool:
        """Until the end (True), or until another connection would be better (False)."""
        while True:
            self._wake.clear()
            if self._hinted:
                self._hinted = False
                self._look_at = 0.0
            self._finisher.collect()
            self._finisher.retry_stuck(driver)
            # What this round acknowledges frees its slots in the same commit that fills them again.
            free = self._settings.concurrency - len(self._held) + len(self._finisher.pending)
            now = clock.monotonic()
            looking = self._claiming and free > 0 and now >= self._look_at
            if self._finisher.pending or looking:
                self._round(driver, free if looking or (self._claiming and free > 0) else 0)
                continue
            # Asked in this order: what is reported before the stop is written before the end.
            if self._stopping and self._finisher.idle:
                run(self._engine.awake(self._settings.identity), driver)
                return True
            if driver.worn:
                return False
            if self.orphan_tokens and now >= self._orphans_at:
                self.release_orphans(driver)
            if self._claiming and free > 0 and self._fall_asleep(driver, now):
                continue
            wait = self._look_at - now if self._claiming and free > 0 else 5.0
            if self.listening and self._claiming and free > 0:
                wait = min(wait, self._sleeping_until - now)
            self._wait(min(wait, 1.0) if self.orphan_tokens or not self._finisher.idle else wait)

    def _round(self, driver: OwnDriver, free: int) -> None:
        """One round trip: acknowledge, promote, claim."""
        started = clock.monotonic()
        claim, promote, full = self._wishes(free, started) if free > 0 else (None, None, False)
        try:
            cycle = run(self._engine.cycle(self._finisher.pending, claim, promote), driver)
        except Exception as error:
            kind = classify(error)
            if claim is not None and kind is Kind.DISCONNECTED:  # it may have committed all the same
                self.orphan_tokens.append((claim.token, started + 2 * self._settings.lease))
            if not from_driver(error) or kind in {Kind.DISCONNECTED, Kind.SCHEMA}:
                raise
            had_acks = bool(self._finisher.pending)
            self._finisher.replay(driver)
            if kind is not Kind.RETRYABLE and not had_acks:
                raise  # the claim itself fails: said, never taken for an empty queue
            self._busy(error)
            self._wait(random.random() * 0.02, only_stop=True)  # noqa: S311 - not a secret
            return
        self._finisher.pending = []
        self._was_well = True
        self._busy_rounds = 0
        if self._ill:
            self._ill = False
            self._stream.emit(Event(what=What.RECONNECTED))
        self._finisher.free(cycle)
        if cycle.claims:
            self._accept(cycle.claims, started)
        self._finisher.look_up(cycle.unacknowledged, driver)
        if claim is not None:
            self._took(driver, claim, cycle, promoted=promote is not None, full=full, started=started)

    def _wishes(self, free: int, now: float) -> tuple[ClaimRequest, Promote | None, bool]:
        """What to claim, whether to promote with it, and whether it is a full look."""
        lanes, full = self._lanes.plan(now)
        claim = ClaimRequest(
            lanes=lanes,
            limit=min(free, self._batch),
            tasks=self._tasks,
            token=uuid4(),
            worker=self._settings.identity,
            lease=self._settings.lease,
        )
        promote = None
        if now >= self._promote_at:
            if now >= self._full_promote_at:
                self._promote_floor, self._full_promote_at = None, now + 1.0
            promote = Promote(self._promote_floor, _PROMOTE_BATCH)
        return claim, promote, full

    def _took(
        self, driver: OwnDriver, claim: ClaimRequest, cycle: Cycle, *, promoted: bool, full: bool, started: float
    ) -> None:
        """Learn from a look, and decide when to look next."""
        now = clock.monotonic()
        short = len(cycle.claims) + cycle.parked < claim.limit
        self._lanes.saw(cycle.claims, short=short, full=full, now=now, cost=now - started)
        if promoted:
            self._next_due = float("inf") if cycle.next_due is None else now + max(cycle.next_due, 0.0)
            # Under load a probe for due jobs goes along now and then, and when one is known to be due.
            self._promote_at = 0.0 if cycle.promoted else min(now + _PROMOTE_EVERY, self._next_due)
        if cycle.promoted:
            self._lanes.lower(cycle.promoted_floor)
            self._promote_floor = cycle.promoted_floor
        if cycle.parked:
            self._park(driver, cycle, many=cycle.parked * 2 >= claim.limit)
        if cycle.promoted or cycle.parked or not short:
            self._look_at = 0.0
            return
        if not full:  # the walk began at a watermark: something may stand before it
            self._look_at = now + self._lanes.full_look_in(now)
            return
        if self._settings.burst and not len(self._held) and self.idle:
            self._dry()
        pause = self._settings.poll if self.listening else min(self._settings.poll, _POLL_WITHOUT_WAKEUP)
        pause *= 0.9 + random.random() * 0.2  # noqa: S311 - not a secret
        # What is known to be due, or the next probe where this look had none with it.
        pause = min(pause, max((self._next_due if promoted else self._promote_at) - now, 0.0))
        if not self._wake.is_set():
            self._look_at = now + pause

    def _park(self, driver: OwnDriver, cycle: Cycle, *, many: bool) -> None:
        """A claim met jobs of tasks that nobody registered here: put many of them out of the way at once."""
        why = "not registered here; they wait for a worker that knows them (a renamed task keeps jobs with name=…)"
        self._stream.emit(Event(what=What.PARKED, task=cycle.parked_task, count=cycle.parked, error=why))
        for queue in self._queues if many else ():
            for priority in PRIORITIES.values():
                run(self._engine.park(queue, priority, self._tasks, _PARK_BATCH), driver)

    def _fall_asleep(self, driver: OwnDriver, now: float) -> bool:
        """Before waiting, see that enqueues will notify; True when the record was new: look once more after it."""
        if not self.listening or now < self._sleeping_until:
            return False
        run(self._engine.sleep(self._settings.identity, self._queues, _SLEEP_RECORD), driver)
        self._sleeping_until = now + _SLEEP_RECORD / 2
        self._look_at = 0.0
        return True

    def _wait(self, seconds: float, *, only_stop: bool = False) -> None:
        if only_stop:
            # Reports do not end this wait: there is nowhere to write them.
            until = clock.monotonic() + seconds
            while not self._stopping and (left := until - clock.monotonic()) > 0:
                self._wake.wait(min(left, 0.1))
                self._wake.clear()
            self._wake.set()
            return
        if seconds > 0:
            self._wake.wait(seconds)
