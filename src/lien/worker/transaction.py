"""`ctx.transaction()`: the handler's effects and the acknowledgement of its job in one commit.

The acknowledgement is the last statement: sent first, its row lock would keep the lease from being renewed while the
handler works. When it changes nothing the claim is somebody else's by now, and everything is rolled back.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from lien import clock
from lien.commands import arun, run
from lien.drivers.classify import Kind, classify
from lien.errors import DatabaseUnavailable, StaleClaim, UsageError
from lien.machine import AttemptOutcome
from lien.model import Ack
from lien.store import Store
from lien.worker.held import Running

_ASK_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class Block:
    """One transaction of a handler; a context manager, for ``with`` and for ``async with``."""

    def __init__(self, store: Store, running: Running) -> None:
        self._store = store
        self._running = running
        claim = running.claim
        self._ack = Ack(claim.id, claim.attempt, claim.token, "succeed", AttemptOutcome.SUCCEEDED)
        self._owned: Any = None

    # ── with ──

    def __enter__(self) -> Any:
        self._once()
        with self._store.translated():
            self._owned = self._store.connector.begin()
        self._store.block_opened()
        return self._owned.connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        owned = self._owned
        self._store.block_closed()
        try:
            if error is not None:
                owned.rollback()
                return
            self._running.ended = True  # from here on the row may be gone: its lease is no matter any more
            committed = False
            try:
                owned.seal()
                cycle = run(self._store.engine.finish([self._ack]), owned.driver)
                self._judge(bool(cycle.ended))
                owned.commit()
                committed = True
            except Exception as fault:
                if classify(fault) is not Kind.DISCONNECTED:
                    owned.rollback()
                    raise
                committed = self._ask()
                if not committed:
                    raise self._broken() from fault
            finally:
                self._running.ended = committed
            self._running.acknowledged = True
        finally:
            owned.close()

    # ── async with ──

    async def __aenter__(self) -> Any:
        self._once()
        with self._store.translated():
            self._owned = await self._store.connector.abegin()
        self._store.block_opened()
        return self._owned.connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        owned = self._owned
        self._store.block_closed()
        try:
            if error is not None:
                await owned.rollback()
                return
            self._running.ended = True
            committed = False
            try:
                owned.seal()
                cycle = await arun(self._store.engine.finish([self._ack]), owned.driver)
                self._judge(bool(cycle.ended))
                await owned.commit()
                committed = True
            except Exception as fault:
                if classify(fault) is not Kind.DISCONNECTED:
                    await owned.rollback()
                    raise
                committed = await self._aask()
                if not committed:
                    raise self._broken() from fault
            finally:
                self._running.ended = committed
            self._running.acknowledged = True
        finally:
            await owned.close()

    # ── both ──

    def _once(self) -> None:
        claim = self._running.claim
        if self._running.opened:
            raise UsageError(
                f"job {claim.id}: one ctx.transaction() in an attempt, as it acknowledges the job; enqueue another job "
                "for what comes after"
            )
        self._running.context.check()
        self._running.opened = True

    def _judge(self, accepted: bool) -> None:  # noqa: FBT001 - the only thing to say
        if not accepted:
            claim = self._running.claim
            raise StaleClaim(
                f"job {claim.id}, attempt {claim.attempt}: the claim is no longer this worker's; its transaction was "
                "rolled back"
            )

    def _broken(self) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"{self._store.masked_url} went away while job {self._running.claim.id} was being committed, and nothing "
            "says that it was"
        )

    def _ask(self) -> bool:
        """Whether the commit whose answer was lost had happened: the attempt's record would be there."""
        for pause in _ASK_PAUSES:
            try:
                return bool(self._store.run(self._store.engine.find_closed, [self._ack]))
            except DatabaseUnavailable:
                clock.sleep(pause)
        return False

    async def _aask(self) -> bool:
        for pause in _ASK_PAUSES:
            try:
                return bool(await self._store.arun(self._store.engine.find_closed, [self._ack]))
            except DatabaseUnavailable:
                await asyncio.sleep(pause)  # noqa: TID251 - a back-off
        return False
