"""The acknowledgements of a worker: collected from handlers, written, and seen through when the database resists."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from lien import clock
from lien.commands import run
from lien.drivers.classify import Kind, classify, first_line
from lien.drivers.contract import OwnDriver
from lien.engines.contract import Engine
from lien.machine import AttemptOutcome, State
from lien.model import Ack, Cycle
from lien.worker.events import Stream, What
from lien.worker.held import HeldClaims, Running
from lien.worker.outcome import unstorable
from lien.worker.telling import about, tell_ended

_STUCK_PAUSE = 2.0


class Finisher:
    """What handlers have reported, on its way to the database.

    Args:
        put_back: told the ``available_at`` of a job that is runnable again.
        busy: told of each lost race.
    """

    def __init__(
        self,
        engine: Engine,
        held: HeldClaims,
        stream: Stream,
        put_back: Callable[[Any], None],
        busy: Callable[[Exception], None],
    ) -> None:
        self._engine = engine
        self._held = held
        self._stream = stream
        self._put_back = put_back
        self._busy = busy
        self._reported: deque[tuple[Running, Ack | None]] = deque()
        self._stuck: list[Ack] = []
        self._stuck_at = 0.0
        self.pending: list[Ack] = []

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._reported and not self.pending and not self._stuck

    def report(self, running: Running, ack: Ack | None) -> None:
        """A handler has ended; from any thread."""
        self._reported.append((running, ack))

    def collect(self) -> None:
        """Take what handlers have reported, and what was stuck for a while."""
        withdrawn = []
        reported = self._reported
        while reported:
            running, ack = reported.popleft()
            if ack is None:
                withdrawn.append(running.key)
                if running.acknowledged and self._stream.wanted:
                    claim = running.claim
                    took = clock.monotonic() - (running.began_at or 0.0)
                    self._stream.emit(about(What.SUCCEEDED, claim, claim.id, claim.attempt, seconds=took))
            else:
                if ack.kind != "succeed":
                    running.note, running.again_in = ack.error, ack.delay
                self.pending.append(ack)
        if withdrawn:
            self._held.remove(withdrawn)

    def replay(self, driver: OwnDriver) -> None:
        """Write the pending acknowledgements alone, again if need be."""
        self.collect()
        acks, self.pending = self.pending, []
        try:
            self.write(driver, acks)
        except BaseException:
            self.pending = acks + self.pending  # a repeated one changes nothing and says so
            raise

    def retry_stuck(self, driver: OwnDriver) -> None:
        """Try again, one by one and now and then, those whose row somebody holds: the others do not wait for them."""
        if self._stuck and clock.monotonic() >= self._stuck_at:
            acks, self._stuck = self._stuck, []
            for n, ack in enumerate(acks):
                try:
                    self.write(driver, [ack])
                except BaseException:
                    self._stuck += acks[n:]
                    raise

    def write(self, driver: OwnDriver, acks: list[Ack]) -> None:
        """Write acks; halve a batch that is refused until the one that cannot be stored stands alone."""
        while acks:
            try:
                cycle = run(self._engine.finish(acks), driver)
            except Exception as error:
                kind = classify(error)
                if kind not in {Kind.REFUSED, Kind.RETRYABLE}:
                    raise  # the database's trouble, not the value's: they are written when it is well again
                if kind is Kind.RETRYABLE:
                    self._busy(error)
                if len(acks) > 1:
                    half = len(acks) // 2
                    self.write(driver, acks[:half])
                    acks = acks[half:]
                elif kind is Kind.RETRYABLE:
                    self._stuck.append(acks[0])
                    self._stuck_at = clock.monotonic() + _STUCK_PAUSE * (0.5 + random.random())  # noqa: S311
                    return
                elif acks[0].kind != "fail" or not acks[0].final:
                    acks = [unstorable(acks[0], error)]
                else:  # not even that: its lease will end it, and the others must not wait for it
                    self._drop(acks[0], error)
                    return
            else:
                self.free(cycle)
                self.look_up(cycle.unacknowledged, driver)
                return

    def free(self, cycle: Cycle) -> None:
        """Free the slots of what is written."""
        if not cycle.ended:
            return
        gone = self._held.remove([(ended.id, ended.attempt) for ended in cycle.ended])
        for ended in cycle.ended:
            if ended.state is State.RUNNABLE:
                self._put_back(ended.available_at)
        if self._stream.wanted or any(e.state is not State.SUCCEEDED for e in cycle.ended):
            tell_ended(self._stream, cycle.ended, gone)

    def look_up(self, acks: Sequence[Ack], driver: OwnDriver) -> None:
        """Say of acks that changed nothing whether they had been written before or are stale; free their slots."""
        if not acks:
            return
        try:
            closed = run(self._engine.find_closed(acks), driver)
        except BaseException:
            self.pending += acks  # a repeated one changes nothing and says so
            raise
        gone = {running.claim.id: running for running in self._held.remove([(ack.id, ack.attempt) for ack in acks])}
        for ack in acks:
            running = gone.get(ack.id)
            claim = running.claim if running else None
            if ack.id not in closed:
                late = f"its {ack.kind} came too late: the claim is no longer this worker's; nothing was changed"
                self._stream.emit(about(What.STALE, claim, ack.id, ack.attempt, error=late))
            elif ack.outcome is AttemptOutcome.SUCCEEDED and self._stream.wanted:
                self._stream.emit(about(What.SUCCEEDED, claim, ack.id, ack.attempt))

    def _drop(self, ack: Ack, error: Exception) -> None:
        gone = self._held.remove([(ack.id, ack.attempt)])
        claim = gone[0].claim if gone else None
        why = f"the database refuses every word about its end, so its lease will run out: {first_line(error)}"
        self._stream.emit(about(What.LOST, claim, ack.id, ack.attempt, error=why))
