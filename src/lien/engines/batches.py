"""Acknowledgements in batches, as every engine writes them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from lien.model import Ack

Batches = dict[tuple[str, UUID], list[Ack]]


def batched(acks: Sequence[Ack]) -> tuple[Batches, list[Ack]]:
    """One batch for each kind and token, in id order; and the acks of claims that an earlier one here ends already."""
    batches: Batches = {}
    seen: set[tuple[int, int]] = set()
    repeated = []
    for ack in sorted(acks, key=lambda ack: ack.id):
        claim = (ack.id, ack.attempt)
        if claim in seen:
            repeated.append(ack)
            continue
        seen.add(claim)
        kind = "succeed_with_result" if ack.result is not None else ack.kind
        batches.setdefault((kind, ack.token), []).append(ack)
    return batches, repeated
