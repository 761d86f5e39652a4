"""The garbage collector of a process that does nothing but run jobs."""

from __future__ import annotations

import gc

_YOUNG = 50_000


def tune_collector() -> None:
    """Collect cycles less often, and never look again at what was imported.

    A job is about a dozen short-lived objects, none of them in a cycle; by default the collector runs every sixty
    jobs and finds nothing. For processes of Lien's own: a program that embeds a worker decides for itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)
