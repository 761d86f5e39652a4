"""Acknowledgements on SQLite: several statements for each batch, inside the transaction of the caller."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from lien.commands import Fetch, Op
from lien.engines.batches import batched
from lien.engines.sqlite.rows import ACK_FIELDS, packed
from lien.machine import Reason, State
from lien.model import Ack, Ended

Fetcher = Callable[..., Fetch]


def acknowledge(fetch: Fetcher, acks: Sequence[Ack]) -> Op[tuple[list[Ended], list[Ack]]]:
    """Acks in batches: one for each token and kind."""
    batches, repeated = batched(acks)
    ended, missing = list[Ended](), list[Ack]()
    for (kind, token), batch in batches.items():
        close = _succeed if kind.startswith("succeed") else _give_back
        done = yield from close(fetch, kind, token.hex, batch)
        ended += done
        if len(done) < len(batch):
            known = {e.id for e in done}
            missing += [ack for ack in batch if ack.id not in known]
    return ended, missing + repeated


def _succeed(fetch: Fetcher, kind: str, token: str, batch: Sequence[Ack]) -> Op[list[Ended]]:
    ids = json.dumps([ack.id for ack in batch])
    yield fetch("succeed_attempts", ids=ids, token=token)
    if kind == "succeed_with_result":
        yield fetch(kind, acks=packed([(ack.id, ack.result) for ack in batch]), token=token)
    else:
        yield fetch("succeed_history", ids=ids, token=token)
    rows = yield fetch("succeed", ids=ids, token=token)
    if len(rows) == len(batch):
        return [Ended(ack.id, ack.attempt, State.SUCCEEDED, None) for ack in batch]
    attempts = {ack.id: ack.attempt for ack in batch}
    return [Ended(row[0], attempts[row[0]], State.SUCCEEDED, None) for row in rows]


def _give_back(fetch: Fetcher, kind: str, token: str, batch: Sequence[Ack]) -> Op[list[Ended]]:
    """Fail, snooze and release: each job ends here or gets another try."""
    acks = packed([ACK_FIELDS[kind](ack) for ack in batch])
    yield fetch(kind + "_attempts", acks=acks, token=token)
    yield fetch(kind + "_history", acks=acks, token=token)
    over = yield fetch(kind + "_end", acks=acks, token=token)
    again = yield fetch(kind, acks=acks, token=token)
    state = State.RUNNABLE if kind == "release" else State.SCHEDULED
    given = {ack.id: ack for ack in batch}
    return [
        *(Ended(id, given[id].attempt, State.FAILED, Reason(why or str(given[id].reason))) for id, why in over),
        *(Ended(id, given[id].attempt, state, None, at) for id, at in again),
    ]
