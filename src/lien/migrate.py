"""The schema of the tables: what is applied, what is pending, and applying it.

Rule: each release works on its own schema and on the one before (N and N-1), so the tables can be migrated before or
after the code is deployed. Migrations only add; what is no longer used is dropped one release later.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from lien import clock
from lien.drivers.classify import Kind, classify
from lien.errors import DatabaseError, SchemaError, ServerTooOld
from lien.store import Store

_LOCK_ROUNDS = 15


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan: its migration, what it does and locks, and its SQL."""

    migration: str
    title: str
    sql: str


class Migrations:
    """The schema in one database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def applied(self) -> Sequence[int]:
        """Versions that the database has."""
        return self._store.run(self._store.engine.schema_versions)

    def pending(self) -> list[str]:
        """Names of the migrations that the database lacks, in order.

        Raises:
            SchemaError: it has one that this release does not know and cannot work with.
        """
        applied = set(self.applied())
        known = self._store.engine.migrations
        newest = known[-1].version
        if applied and max(applied) > newest + 1:
            raise SchemaError(
                f"{self._store.masked_url} has schema {max(applied)}, made by a newer Lien; "
                f"this one knows up to {newest}: upgrade the package"
            )
        if applied and applied != set(range(1, max(applied) + 1)):
            raise SchemaError(
                f"{self._store.masked_url} has the schema versions {sorted(applied)}, with gaps: restore the table "
                "lien_migration, or start with an empty schema"
            )
        return [f"{m.version:04d}_{m.name}" for m in known if m.version not in applied]

    def plan(self) -> list[Step]:
        """The steps of all pending migrations."""
        pending = set(self.pending())
        return [
            Step(f"{m.version:04d}_{m.name}", title, statement.text)
            for m in self._store.engine.migrations
            if f"{m.version:04d}_{m.name}" in pending
            for title, statement in m.steps
        ]

    def apply(self) -> list[str]:
        """Apply what is pending, one transaction each; safe to run from several places at once.

        Returns:
            The names of the migrations that this call applied.

        Raises:
            ServerTooOld: the server lacks what Lien needs.
            DatabaseError: a lock could not be had in time; nothing of that migration was applied.
        """
        engine = self._store.engine
        server = self._store.run(engine.server)
        if server.too_old is not None:
            raise ServerTooOld(
                f"{self._store.masked_url} is {server.name} {server.version}: Lien needs {server.too_old}"
            )
        self.pending()
        done = []
        for migration in engine.migrations:
            for round_ in range(_LOCK_ROUNDS):
                try:
                    if self._store.run(engine.migrate, migration):
                        done.append(f"{migration.version:04d}_{migration.name}")
                    break
                except DatabaseError as error:
                    cause = error.__cause__
                    if cause is None or classify(cause) is not Kind.RETRYABLE or round_ == _LOCK_ROUNDS - 1:
                        raise
                    clock.sleep(random.random() * 2.0)  # noqa: S311 - not a secret
        return done

    def require(self) -> None:
        """Check that this release can work here.

        Raises:
            SchemaError: the tables are missing or behind.
            ServerTooOld: the server lacks what Lien needs.
        """
        server = self._store.run(self._store.engine.server)
        if server.too_old is not None:
            raise ServerTooOld(
                f"{self._store.masked_url} is {server.name} {server.version}: Lien needs {server.too_old}"
            )
        applied = self.applied()
        pending = self.pending()
        if not applied:
            raise SchemaError(f"{self._store.masked_url} has no Lien tables: run `lien migrate`")
        if len(pending) > 1:  # one behind is what the rule above allows for
            raise SchemaError(f"{self._store.masked_url} is {len(pending)} migrations behind: run `lien migrate`")
