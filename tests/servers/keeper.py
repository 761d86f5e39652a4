"""Outlives the process that started a server, then stops the server and removes its folder.

Run as a script: `keeper.py FOLDER PARENT_PID`. It waits for its standard input to close, which
happens whenever the parent ends, SIGKILL included. A forked child of the parent may hold the
pipe open for longer, hence the look at the parent's id as well. Standard library only.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from pathlib import Path

PATIENCE = 10.0
STEP = 0.02


def main(folder: Path, parent: int) -> None:
    while os.getppid() == parent and not select.select([sys.stdin], [], [], 1.0)[0]:
        pass
    # More than once: the parent may have died between starting initdb or the server and the
    # moment when it leaves a trace.
    for _ in range(5):
        pid = server_pid(folder)
        if pid is not None:
            end(pid)
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        _pause(0.5)


def server_pid(folder: Path) -> int | None:
    """The id of the server's main process, if that is still the one that wrote it down."""
    data = folder / "data"
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
        if Path("/proc/self").exists() and bytes(data) not in _command_line(pid):
            return None
    except (OSError, ValueError, IndexError):
        return None
    return pid


def end(pid: int) -> None:
    """SIGQUIT is PostgreSQL's immediate stop; SIGKILL if even that takes long."""
    for number in (signal.SIGQUIT, signal.SIGKILL):
        if not _signal(pid, number):
            return
        for _ in range(int(PATIENCE / STEP)):
            if not _signal(pid, 0):
                return
            _pause(STEP)


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _signal(pid: int, number: int) -> bool:
    """Send it; False if there is no such process. A dead one that nobody collected is none."""
    try:
        os.kill(pid, number)
        return not Path("/proc/self").exists() or bool(_command_line(pid))
    except (ProcessLookupError, FileNotFoundError):
        return False


def _pause(seconds: float) -> None:
    select.select([], [], [], seconds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
