"""Acknowledgements in batches, as every engine writes them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from uuid import UUID

from lien.model import Ack

_BY_ID = itemgetter(0)

Batches = dict[tuple[str, UUID], list[Ack]]


def batched(acks: Sequence[Ack]) -> tuple[Batches, list[Ack]]:
    """One batch for each kind and token, in id order; and the acks of claims that an earlier one here ends already."""
    batches: Batches = {}
    repeated = []
    last, attempts = 0, tuple[int, ...]()  # of the job before: repeats stand side by side
    token, kind, batch = None, "", list[Ack]()
    for ack in sorted(acks, key=_BY_ID):
        if ack.id != last:
            last, attempts = ack.id, (ack.attempt,)
        elif ack.attempt in attempts:
            repeated.append(ack)
            continue
        else:
            attempts = (*attempts, ack.attempt)
        its_kind = ack.kind if ack.result is None else "succeed_with_result"
        if ack.token is not token or its_kind != kind:  # most neighbours were claimed together
            token, kind = ack.token, its_kind
            batch = batches.setdefault((kind, token), [])
        batch.append(ack)
    return batches, repeated
