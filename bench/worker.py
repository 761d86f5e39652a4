"""One worker process that drains a queue of no-op async jobs: `python -m bench.worker URL CONCURRENCY`."""

from __future__ import annotations

import json
import sys
import time

from bench.databases import app
from lien.worker import Settings, Worker, tune_collector

if __name__ == "__main__":
    url, concurrency = sys.argv[1], int(sys.argv[2])
    jobs = app(url)
    worker = Worker(jobs, Settings(concurrency=concurrency, burst=True))
    jobs.migrations.require()
    tune_collector()  # as `lien worker` does
    cpu, started = time.process_time(), time.perf_counter()
    worker.run()
    print(json.dumps({"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}))
