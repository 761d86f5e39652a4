"""The books: what must be true after the story, counted in the database and nowhere else."""

from __future__ import annotations

from typing import NamedTuple

from lien.demo.tables import Connection, number


class Line(NamedTuple):
    """One line of the ledger; ``at_least``: more is right as well."""

    name: str
    expected: int
    found: int
    at_least: bool = False

    @property
    def balances(self) -> bool:
        """Whether what was found is what is right."""
        if self.at_least:
            return self.found >= self.expected
        return self.found == self.expected


class _Entry(NamedTuple):
    name: str
    expected: int | str  # a number, or the query for it
    found: str
    at_least: bool = False


_COMMITTED = "SELECT count(*) FROM checkout WHERE committed = 1"
_POISON = "SELECT id FROM lien_jobs WHERE task = 'render_catalog'"

_ENTRIES = (
    _Entry("orders committed", _COMMITTED, "SELECT count(*) FROM shop_order"),
    _Entry(
        "their receipts, sent exactly once",
        _COMMITTED,
        """SELECT count(*) FROM shop_order o
        WHERE (SELECT count(*) FROM receipt r WHERE r.order_id = o.id) = 1""",
    ),
    _Entry(
        "their jobs, one each, succeeded",
        _COMMITTED,
        """SELECT count(*) FROM shop_order o
        WHERE (SELECT count(*) FROM order_job j WHERE j.order_id = o.id) = 1
        AND EXISTS (SELECT 1 FROM order_job j WHERE j.order_id = o.id AND j.state = 'succeeded')""",
    ),
    _Entry(
        "receipts of rolled-back orders",
        0,
        """SELECT count(*) FROM receipt
        WHERE order_id NOT IN (SELECT order_id FROM checkout WHERE committed = 1)""",
    ),
    _Entry(
        "jobs of rolled-back orders",
        0,
        "SELECT count(*) FROM order_job WHERE committed = 0",
    ),
    _Entry(
        "jobs lost (in no terminal state)",
        0,
        "SELECT count(*) FROM lien_jobs WHERE state NOT IN ('succeeded', 'failed')",
    ),
    _Entry(
        "jobs of silent workers, finished by another",
        2,
        """SELECT count(*) FROM lien_jobs j WHERE j.task = 'print_receipt' AND EXISTS (
            SELECT 1 FROM lien_attempt gone
            JOIN lien_attempt done ON done.job_id = gone.job_id AND done.worker <> gone.worker
            WHERE gone.job_id = j.id AND gone.outcome = 'lost' AND done.outcome = 'succeeded')""",
    ),
    _Entry(
        "late acknowledgements refused",
        1,
        """SELECT count(*) FROM late_ack late
        JOIN lien_attempt gone ON gone.job_id = late.job_id AND gone.attempt = late.attempt
        JOIN lien_attempt done ON done.job_id = late.job_id AND done.worker <> gone.worker
        WHERE gone.outcome = 'lost' AND done.outcome = 'succeeded'""",
        at_least=True,
    ),
    _Entry(
        "jobs that succeeded after failed attempts",
        1,
        """SELECT count(*) FROM lien_jobs
        WHERE task = 'mail_receipt' AND state = 'succeeded' AND failures > 0""",
    ),
    _Entry(
        "poison jobs ended as failed (lost)",
        1,
        f"SELECT count(*) FROM lien_jobs WHERE id IN ({_POISON}) "  # noqa: S608 - a constant
        "AND state = 'failed' AND reason = 'lost'",
    ),
    _Entry(
        "processes that the poison killed",
        3,
        f"SELECT count(*) FROM job_start WHERE job_id IN ({_POISON})",  # noqa: S608 - a constant
    ),
    _Entry(
        "cancelled jobs that never started",
        1,
        """SELECT count(*) FROM lien_jobs j
        WHERE j.task = 'remind_customer' AND j.state = 'failed' AND j.reason = 'cancelled'
        AND NOT EXISTS (SELECT 1 FROM job_start s WHERE s.job_id = j.id)""",
    ),
    _Entry(
        "jobs whose attempts are not 1 to n, one row each",
        0,
        """SELECT count(*) FROM lien_jobs j
        WHERE j.attempt <> (SELECT count(*) FROM lien_attempt a WHERE a.job_id = j.id)
        OR j.attempt <> (SELECT count(DISTINCT a.attempt) FROM lien_attempt a
            WHERE a.job_id = j.id AND a.attempt BETWEEN 1 AND j.attempt)""",
    ),
    _Entry(
        "claims left behind",
        0,
        "SELECT count(*) FROM lien_jobs WHERE state = 'claimed'",
    ),
)


def compute(connection: Connection) -> list[Line]:
    """The ledger as the database has it now."""
    return [
        Line(
            entry.name,
            number(connection, entry.expected) if isinstance(entry.expected, str) else entry.expected,
            number(connection, entry.found),
            entry.at_least,
        )
        for entry in _ENTRIES
    ]


def balances(lines: list[Line]) -> bool:
    """Whether every line does."""
    return all(line.balances for line in lines)
