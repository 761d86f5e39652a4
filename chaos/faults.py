"""What is done to a run: signals to workers, cuts and crashes of the database, operators that get in the way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from uuid import UUID, uuid4

import psycopg

from chaos.app import QUEUES, open_lien
from chaos.arena import Arena
from chaos.checker import Cancelled
from chaos.crew import Crew, Member
from chaos.settings import CANCEL_GRACE, GRACE, LEASE, STOPPED_FOR, Plan
from lien import LienError, UsageError, clock
from lien.machine import AttemptOutcome, Reason
from lien.model import Ack, Claim, ClaimRequest, Held, Lane, NewJob, Promote

_TRYING = 0.3
_CANCELLED = 0.3
_LEFT = 0.3
_GETTING_READY = 15.0
PATIENCE = (GRACE + CANCEL_GRACE) * 4 + 10.0


class Operator:
    """Cancels and copies jobs at random, and repeats what was acknowledged long ago.

    Args:
        arena: the database.
        dice: what is random.
    """

    def __init__(self, arena: Arena, dice: random.Random) -> None:
        self._arena = arena
        self._dice = dice
        self._jobs = open_lien(arena.url, "chaos-operator")
        self._late = open_lien(arena.url, "chaos-late")
        self._idle = open_lien(arena.url, "chaos-idle")
        self.cancels: list[Cancelled] = []
        self.accepted: list[tuple[int, str]] = []
        self.repeats = 0
        self.counts: Counter[str] = Counter()

    def storm(self) -> None:
        """A dozen requests at once."""
        table = self._arena.table
        live = [id for (id,) in self._arena.rows(f"SELECT id FROM {table('job')} ORDER BY id DESC LIMIT 300")]  # noqa: S608
        claimed = [id for (id,) in self._arena.rows(f"SELECT id FROM {table('job')} WHERE state = 'claimed'")]  # noqa: S608
        failed = [
            id
            for (id,) in self._arena.rows(
                f"SELECT id FROM {table('history')} WHERE state = 'failed' ORDER BY finished_at DESC LIMIT 50"  # noqa: S608
            )
        ]
        for ids, most in ((live, 2), (claimed, 3)):
            for id in self._some(ids, most):
                self._cancel(id)
        for id in self._some(failed, 2):
            self._ask("copied", partial(self._jobs.retry, id))
            self._ask("looked at", partial(self._jobs.attempts, id))
        self._repeat()
        self._ask("played a worker", self._play_worker)

    def _play_worker(self) -> None:
        """Claim as a worker does, run nothing, and end it in one way or another, or not at all."""
        store, token = self._idle.store, uuid4()
        request = ClaimRequest(
            lanes=tuple(Lane(queue, priority, None) for queue in QUEUES for priority in range(4)),
            limit=4,
            tasks=tuple(self._idle.tasks),
            token=token,
            worker="chaos-idle",
            lease=LEASE,
        )
        claims: list[Claim] = []
        until = clock.monotonic() + _TRYING
        while not claims and clock.monotonic() < until:  # the workers are quick
            claims = store.run(store.engine.cycle, [], request, Promote(None, 50)).claims
        for claim in claims:
            if self._dice.random() < _CANCELLED:
                self._cancel(claim.id)
        if self._dice.random() >= _LEFT:
            store.run(store.engine.finish, [self._some_end(claim) for claim in claims])

    def _some_end(self, claim: Claim) -> Ack:
        match self._dice.choice(("unstarted", "interrupted", "interrupted", "snooze", "fail")):
            case "unstarted":
                kind, outcome = "release", AttemptOutcome.RELEASED
            case "interrupted":
                kind, outcome = "release", AttemptOutcome.INTERRUPTED
            case "snooze":
                kind, outcome = "snooze", AttemptOutcome.SNOOZED
            case _:
                kind, outcome = "fail", AttemptOutcome.FAILED
        final = kind == "fail" and claim.failures + 1 >= claim.max_failures
        return Ack(
            claim.id,
            claim.attempt,
            claim.token,
            kind,
            outcome,
            error="not done",
            delay=0.1,
            final=final,
            reason=Reason.EXHAUSTED if final else None,
            started=outcome is not AttemptOutcome.RELEASED,
        )

    def _some(self, ids: list[int], most: int) -> list[int]:
        return self._dice.sample(ids, min(len(ids), self._dice.randint(0, most)))

    def _cancel(self, id: int) -> None:
        def cancel() -> None:
            self.cancels.append(Cancelled(id, clock.host_time_us(), str(self._jobs.cancel(id))))

        self._ask("cancelled", cancel)

    def _ask(self, what: str, request: Callable[[], object]) -> None:
        try:
            request()
        except UsageError:
            raise
        except LienError:
            self.counts[f"{what}: refused or unreachable"] += 1
        else:
            self.counts[what] += 1

    def _repeat(self) -> None:
        """Acknowledge and renew under tokens whose claim is over, and enqueue again under ids that are taken."""
        # Attempts of jobs that are alive come first: there an acknowledgement could do harm.
        rows = self._arena.rows(
            "SELECT a.job_id, a.attempt, a.claim_token FROM "  # noqa: S608 - names of tables
            f"{self._arena.table('attempt')} a JOIN {self._arena.table('job')} j ON j.id = a.job_id LIMIT 200"
        ) or self._arena.rows(
            f"SELECT job_id, attempt, claim_token FROM {self._arena.table('attempt')} LIMIT 200"  # noqa: S608
        )
        for id, attempt, token in self._dice.sample(rows, min(len(rows), 12)):
            self._ask("repeated", partial(self._late_words, id, attempt, UUID(str(token))))

    def _late_words(self, id: int, attempt: int, token: UUID) -> None:
        store = self._late.store
        self.repeats += 1
        match self._dice.randint(0, 5):
            case 0:
                if id in store.run(store.engine.renew, [Held(id, token)], 60.0).renewed:
                    self.accepted.append((id, f"a renewal of attempt {attempt}"))
            case 1:
                new = NewJob(task="noop", args='{"mark": "again"}')
                if store.run(store.engine.enqueue_again, [new], [id])[0].id != id:
                    self.accepted.append((id, "its enqueue"))
            case choice:
                kind, outcome = _KINDS[choice - 2]
                ack = Ack(id, attempt, token, kind, outcome, error="late", started=True)
                if store.run(store.engine.finish, [ack]).ended:
                    self.accepted.append((id, f"the {kind} of attempt {attempt}"))


_KINDS = (
    ("succeed", AttemptOutcome.SUCCEEDED),
    ("fail", AttemptOutcome.FAILED),
    ("snooze", AttemptOutcome.SNOOZED),
    ("release", AttemptOutcome.INTERRUPTED),
)


class Faults:
    """Carries out a plan.

    Args:
        crew: whom to hurt.
        plan: how often.
        dice: when and whom.
    """

    def __init__(self, crew: Crew, plan: Plan, dice: random.Random) -> None:
        self._crew = crew
        self._arena = crew.arena
        self._dice = dice
        self.operator = Operator(crew.arena, dice)
        self.done: Counter[str] = Counter()
        self.worst_stall = 0.0
        acts: dict[Callable[[], None], int] = {
            self.kill: plan.kills,
            self.cut: plan.backends,
            self.freeze: plan.stops,
            self.roll: plan.rolls,
            self.crash: plan.crashes,
            self.operator.storm: plan.storms,
        }
        self._acts = [act for act, times in acts.items() for _ in range(times)]
        dice.shuffle(self._acts)
        self._seconds = plan.seconds

    def run(self, tell: Callable[[str], None]) -> None:
        """All faults, spread over the seconds of the plan."""
        started = clock.monotonic()
        for i, act in enumerate(self._acts):
            self.wait_until(started + self._seconds * (i + 1) / (len(self._acts) + 1))
            if i % max(len(self._acts) // 10, 1) == 0:
                done = ", ".join(f"{n} {what}" for what, n in sorted(self.done.items()))
                tell(f"{clock.monotonic() - started:4.0f} s: {done or 'the first jobs run'}")
            act()
        while self._crew.frozen:
            self._tick()

    def wait_until(self, moment: float) -> None:
        """Wait, and keep the crew up meanwhile."""
        while clock.monotonic() < moment:
            self._tick()

    def _tick(self) -> None:
        before = clock.monotonic()
        clock.sleep(0.05)
        self.worst_stall = max(self.worst_stall, clock.monotonic() - before - 0.05)
        self._crew.keep_up()

    # ── the faults ──

    def kill(self) -> None:
        """SIGKILL to a worker."""
        if moving := self._some_moving():
            self._crew.kill(self._dice.choice(moving))
            self.done["SIGKILL"] += 1

    def freeze(self) -> None:
        """SIGSTOP to a worker, for longer than its leases; it goes on when they are over."""
        if moving := self._some_moving():
            self._crew.freeze(self._dice.choice(moving), STOPPED_FOR)
            self.done["SIGSTOP past the lease"] += 1

    def roll(self) -> None:
        """A rolling restart: each worker is drained and replaced in turn."""
        until = clock.monotonic() + _GETTING_READY
        while len(self._crew.moving) < len(self._crew.workers) and clock.monotonic() < until:
            self._tick()
        for member in self._crew.moving:
            if member.process.poll() is None and member in self._crew.workers:
                self._crew.hire()
                self._crew.drain(member, PATIENCE)
        self._crew.keep_up()
        self.done["rolling restart"] += 1

    def cut(self) -> None:
        """pg_terminate_backend of a connection that some worker or producer holds."""
        cut = self._arena.rows(
            "SELECT application_name, pg_terminate_backend(pid) FROM ("
            "SELECT pid, application_name FROM pg_stat_activity WHERE application_name LIKE 'chaos-%' "
            "AND datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) AS one"
        )
        self._crew.hurt([name for name, _ in cut])
        self.done["backend cut"] += len(cut)

    def crash(self) -> None:
        """The server is stopped as if it had died, and started again where it was."""
        server = self._arena.server
        if server is None:
            return
        started = clock.host_time_us()
        self._crew.hurt()
        server.stop("immediate")
        clock.sleep(self._dice.random())
        server.start()
        while True:
            try:
                psycopg.connect(self._arena.url, connect_timeout=5).close()
                break
            except psycopg.OperationalError:
                clock.sleep(0.1)
        self._crew.hurt()
        self._crew.outages.append((started, self._crew.hurt_at))
        self.done["crash of the server"] += 1

    def _some_moving(self) -> list[Member]:
        until = clock.monotonic() + 15.0
        while not (moving := self._crew.moving) and clock.monotonic() < until:
            self._tick()
        return moving
