"""One worker process: `python -m chaos.workerproc URL NAME LOG`; every event is a line of JSON."""

from __future__ import annotations

import json
import logging
import os
import sys

from chaos.app import open_lien
from chaos.settings import worker_settings
from lien import clock
from lien.errors import DatabaseUnavailable
from lien.worker import Event, Worker


def main(url: str, name: str, log: str) -> int:
    """Work until told to stop; start again while the database is away."""
    logging.basicConfig(level=logging.ERROR, format=f"{name} %(levelname)s %(name)s: %(message)s")
    logging.getLogger("lien.worker").setLevel(logging.CRITICAL)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(event: Event) -> None:
        line = {"at": clock.host_time_us(), "what": event.what, "job": event.job_id, "attempt": event.attempt}
        if event.error is not None:
            line["error"] = event.error[:200]
        os.write(file, json.dumps(line).encode() + b"\n")

    while True:
        try:
            return Worker(open_lien(url, name), worker_settings(name), (write,)).run()
        except DatabaseUnavailable:
            clock.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
