"""The wake-up thread: waits for hints from the database and tells the pump to look. Polling is what is relied on."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Protocol

from lien.drivers.classify import first_line, from_driver
from lien.drivers.contract import Wakeup
from lien.store import Store
from lien.worker.events import logger

_CHECK_EVERY = 15.0
_MAX_BACKOFF = 30.0


class Listening(Protocol):
    """Takes word whether hints can come at the moment."""

    def __call__(self, *, yes: bool) -> None:
        """Hints can come, or not."""


class WakeThread:
    """Listens until told to stop.

    Args:
        hint: makes the pump look.
        listening: told whether hints can come at the moment.
    """

    def __init__(self, store: Store, hint: Callable[[], None], listening: Listening) -> None:
        self._store = store
        self._hint = hint
        self._listening = listening
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._wakeup: Wakeup | None = None

    def stop(self) -> None:
        """End soon."""
        self._stop.set()
        with self._lock:
            if self._wakeup is not None:
                self._wakeup.interrupt()

    def run(self) -> None:
        """The thread's main: listen for ever; a broken source is opened anew, with backoff."""
        failures = 0
        while not self._stop.is_set():
            try:
                self._wakeup = self._store.connector.wakeup(self._store.engine.channel)
                if self._wakeup is None:
                    return
                self._listening(yes=True)
                self._hint()  # what came while nobody listened
                failures = 0
                while not self._stop.is_set():
                    if self._wakeup.wait(_CHECK_EVERY):
                        self._hint()
                    elif not self._stop.is_set():
                        self._wakeup.check()
            except Exception as error:
                if not from_driver(error):
                    raise
                failures += 1
                if failures == 1:
                    logger.warning("wake-ups do not come just now, polling goes on: %s", first_line(error))
            finally:
                self._listening(yes=False)
                with self._lock:
                    if self._wakeup is not None:
                        self._wakeup.close()
                        self._wakeup = None
            pause = min(_MAX_BACKOFF, 0.1 * 2.0 ** min(failures, 10)) * (0.5 + random.random() / 2)  # noqa: S311
            self._stop.wait(pause)
