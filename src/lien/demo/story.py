"""The direction: orders come in, workers are killed and stopped, and no receipt is lost or sent twice."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

from lien import clock
from lien.demo import shop
from lien.demo.crew import Crew, Hand
from lien.demo.screen import Scene, Screen
from lien.demo.tables import TABLES, Connection, ask, can_be_written, number, run
from lien.machine import State

WORKERS = ("w1", "w2", "w3", "w4")
_BULK = 10
_LEAVING = 0.1
_WITH_GIFT = 0.07
_GIFTS = 1_000_000  # the ids of orders that come and go within another one's transaction
_START = "SELECT worker FROM job_start WHERE job_id = ? AND attempt = 1"


class Broken(Exception):
    """The story cannot go on; the message says why."""


class Story:
    """One run of the demo.

    Args:
        connection: the shop's own.
        orders: how many customers come to the till.
        dice: decides who of them pays.
    """

    def __init__(
        self,
        screen: Screen,
        crew: Crew,
        connection: Connection,
        orders: int,
        dice: random.Random,
    ) -> None:
        self._screen = screen
        self._crew = crew
        self._connection = connection
        self._dice = dice
        self._orders = orders
        self._next = orders + 1
        self._cast: list[tuple[str, int]] = []
        self._poison_workers = 0
        self._late_acks: set[tuple[int, int]] = set()
        self._goal = 0
        self.waiting_for = "all orders are taken"

    def run(self) -> list[Scene]:
        """Play it; what became of the interesting jobs."""
        self._open_the_shop()
        self._poison()
        self._take_orders()
        self._fail_twice()
        self._cancel()
        self._kill_a_worker()
        stopped, late = self._stop_a_worker()
        self._continue(stopped, late)
        self._close_the_shop()
        store = shop.jobs
        return [Scene(title, store.job(id), store.attempts(id)) for title, id in self._cast]

    # ── scenes ──

    def _open_the_shop(self) -> None:
        for table in TABLES:
            run(self._connection, table)
        self._connection.commit()
        for name in WORKERS:
            self._crew.hire(name, "receipts")
        self._hire_poison_worker()
        self._screen.say(f"tables created, {len(WORKERS) + 1} worker processes started")

    def _poison(self) -> None:
        job = shop.render_catalog.using(self._connection).enqueue()
        self._connection.commit()
        self._cast.append(("poison: kills every process that runs it, max_lost=3", job.id))

    def _take_orders(self) -> None:
        """One transaction for each customer; some change their minds, and the last ones come as a group."""
        single = self._orders - _BULK
        minds = {id: self._dice.random() for id in range(1, single + 1)}
        leaving = {id for id, mind in minds.items() if mind < _LEAVING}
        gifts = {id for id, mind in minds.items() if mind > 1.0 - _WITH_GIFT}
        for id in minds:
            self._expect(id, committed=id not in leaving)
            if id in gifts:
                self._expect(_GIFTS + id, committed=False)
        for id in range(single + 1, self._orders + 1):
            self._expect(id, committed=True)
        self._connection.commit()
        self._goal = self._orders - len(leaving)
        for id in minds:
            self._check_out(id, pays=id not in leaving, gift=id in gifts)
            self._look()
        self._group_order(range(single + 1, self._orders + 1))
        self._screen.say(
            f"{self._goal} orders committed, {len(leaving)} rolled back, "
            f"{len(gifts)} rolled back to a savepoint; each with its job"
        )

    def _check_out(self, id: int, *, pays: bool, gift: bool) -> None:
        connection = self._connection
        shop.place_order(connection, id, self._cents())
        if gift:
            run(connection, "SAVEPOINT gift")
            shop.place_order(connection, _GIFTS + id, self._cents())
            run(connection, "ROLLBACK TO SAVEPOINT gift")
        if pays:
            connection.commit()
        else:
            connection.rollback()

    def _group_order(self, ids: range) -> None:
        for id in ids:
            shop.write_order(self._connection, id, self._cents())
        in_bulk = shop.send_receipt.using(self._connection, delay=1.0)
        in_bulk.enqueue_many({"order_id": id} for id in ids)
        self._connection.commit()

    def _fail_twice(self) -> None:
        id = self._new_order()
        shop.write_order(self._connection, id, self._cents())
        job = shop.mail_receipt.using(self._connection).enqueue(order_id=id)
        self._connection.commit()
        self._cast.append(("its mail server refuses twice", job.id))
        self._until("it is mailed all the same", lambda: shop.jobs.job(job.id).state is State.SUCCEEDED)

    def _cancel(self) -> None:
        job = shop.remind_customer.using(self._connection, delay=3600).enqueue()
        self._connection.commit()
        shop.jobs.cancel(job.id)
        self._cast.append(("cancelled while it waited", job.id))

    def _kill_a_worker(self) -> None:
        _, job, hand = self._printing()
        hand.expected_to_die = True
        hand.send(signal.SIGKILL)
        self._screen.say(f"worker {hand.name} killed with SIGKILL while it ran job {job}")
        self._cast.append((f"worker {hand.name} was killed while running it", job))

    def _stop_a_worker(self) -> tuple[Hand, int]:
        """Stop one inside a job until another has done the work."""
        order, job, hand = self._printing()
        self._stop_between_writes(hand, job)
        self._screen.say(f"worker {hand.name} stopped with SIGSTOP while it ran job {job}")
        self._cast.append((f"worker {hand.name} was stopped while running it", job))
        self._until(
            f"another worker has done the job of {hand.name}",
            lambda: shop.jobs.job(job).state is State.SUCCEEDED,
        )
        run(self._connection, "INSERT INTO printer_ready (order_id) VALUES (?)", order)
        self._connection.commit()
        return hand, job

    def _stop_between_writes(self, hand: Hand, job: int) -> None:
        """A process stopped inside a transaction would keep its locks, and others waiting for them."""
        hand.stop()
        clock.sleep(0.1)  # what it has sent may still be on its way to the server
        while not can_be_written(self._connection, job):
            hand.send(signal.SIGCONT)
            self._look()
            hand.stop()
            clock.sleep(0.1)

    def _continue(self, hand: Hand, job: int) -> None:
        hand.send(signal.SIGCONT)
        self._screen.say(f"another worker has done it: {hand.name} continued with SIGCONT")
        self._until(
            f"the late acknowledgement of {hand.name} is refused",
            lambda: (job, 1) in self._late_acks,
        )
        self._screen.say(f"the late acknowledgement of {hand.name} was refused")

    def _close_the_shop(self) -> None:
        self._until(
            "every job has ended",
            lambda: number(self._connection, "SELECT count(*) FROM lien_job") == 0,
        )
        self._screen.say("every job has ended; the workers are asked to go")
        self.waiting_for = "the workers have gone"
        if not self._crew.drain(10.0):
            raise Broken("a worker did not end within 10 s of SIGTERM")
        self._look(closing=True)

    # ── what they have in common ──

    def _expect(self, order_id: int, *, committed: bool) -> None:
        run(
            self._connection,
            "INSERT INTO checkout (order_id, committed) VALUES (?, ?)",
            order_id,
            int(committed),
        )

    def _new_order(self) -> int:
        id, self._next = self._next, self._next + 1
        self._expect(id, committed=True)
        self._connection.commit()
        self._goal += 1
        return id

    def _cents(self) -> int:
        return self._dice.randrange(100, 100_00)

    def _printing(self) -> tuple[int, int, Hand]:
        """An order whose receipt is being printed: its id, its job, and the worker that has begun."""
        order = self._new_order()
        job = shop.place_order(self._connection, order, self._cents(), slow_printer=True)
        self._connection.commit()
        self._until(f"job {job} has started", lambda: bool(ask(self._connection, _START, job)))
        name = ask(self._connection, _START, job)[0][0]
        return order, job, self._crew.hands[name]

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        self.waiting_for = what
        while not condition():
            self._look()
            clock.sleep(0.05)

    def _look(self, *, closing: bool = False) -> None:
        """Hear the workers' news, restart the one that the poison kills, show how far it is."""
        for told in self._crew.news():
            if told.what == "stale" and told.job_id is not None and told.attempt is not None:
                self._late_acks.add((told.job_id, told.attempt))
                run(
                    self._connection,
                    "INSERT INTO late_ack (job_id, attempt, worker) VALUES (?, ?, ?)",
                    told.job_id,
                    told.attempt,
                    told.worker,
                )
                self._connection.commit()
        if closing:
            return
        for hand in self._crew.hands.values():
            if hand.exit_code is not None and not hand.expected_to_die:
                self._ended(hand)
                break
        sent = number(self._connection, "SELECT count(*) FROM receipt")
        alive = len(self._crew.alive)
        self._screen.progress(f"{sent} of {self._goal} receipts, {alive} workers; waiting until {self.waiting_for}")

    def _ended(self, hand: Hand) -> None:
        if hand.work != "catalogs" or hand.exit_code != -signal.SIGKILL:
            raise Broken(f"worker {hand.name} ended by itself, with exit code {hand.exit_code}")
        hand.expected_to_die = True
        self._screen.say(f"worker {hand.name} was killed by the poison job and is replaced")
        self._hire_poison_worker()

    def _hire_poison_worker(self) -> None:
        self._poison_workers += 1
        self._crew.hire(f"p{self._poison_workers}", "catalogs")
