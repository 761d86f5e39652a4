"""A program that forks while it uses Lien: `python -m tests.worker.forks URL idle|worker`."""

from __future__ import annotations

import os
import sys
import threading

import lien
from lien.worker import Settings, Worker


def child(task: lien.Task[..., None], jobs: lien.Lien) -> str:
    """What a forked child does."""
    try:
        said = f"enqueued {task.enqueue().id}"
        jobs.close()
    except lien.LienError as error:
        said = f"{type(error).__name__}: {error}"
    return said


def main(url: str, mode: str) -> None:
    """Fork, let the child work, then work on."""
    jobs = lien.Lien(url)

    @jobs.task
    def work() -> None: ...

    first = work.using(delay=600).enqueue().id
    worker = Worker(jobs, Settings(queues=("other",)))
    thread = threading.Thread(target=lambda: worker.run(signals=False))
    if mode == "worker":
        thread.start()
        jobs.store.run(jobs.store.engine.show, first)
        while not worker._pump.listening:
            pass
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, child(work, jobs).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    sys.stdout.write(f"child: {os.read(read, 1000).decode()}\n")
    sys.stdout.write(f"parent: {jobs.cancel(first)}\n")
    if mode == "worker":
        worker.stop()
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
