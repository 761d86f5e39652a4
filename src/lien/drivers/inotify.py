"""Linux tells when a file is written: inotify through the C library, for one file."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_MODIFIED = 0x2
_ATTRIBUTES = 0x4  # also when a name of the file is removed
_IGNORED = 0x8000  # the file is gone, and the watch with it
_HEADER = 16


class Unwatchable(OSError):
    """This system, or its limit on watches, does not allow it."""


class FileWatch:
    """Becomes readable when the file is written to.

    Raises:
        Unwatchable: there is no inotify here, or no watch left.
    """

    def __init__(self, path: str) -> None:
        if sys.platform != "linux":
            raise Unwatchable("inotify is a part of Linux")
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            init, add = libc.inotify_init1, libc.inotify_add_watch
        except (OSError, AttributeError) as missing:
            raise Unwatchable("the C library has no inotify") from missing
        self._path = Path(path)
        self._fd: int = init(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise Unwatchable(ctypes.get_errno(), "inotify_init1 failed")
        if add(self._fd, os.fsencode(path), ctypes.c_uint32(_MODIFIED | _ATTRIBUTES)) < 0:
            error = ctypes.get_errno()
            os.close(self._fd)
            raise Unwatchable(error, "inotify_add_watch failed", path)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._fd

    def written(self) -> bool:
        """Whether the file was written to since the last call; does not block.

        Raises:
            FileNotFoundError: the file is gone.
        """
        try:
            events = os.read(self._fd, 65536)
        except BlockingIOError:
            return False
        at = 0
        while at < len(events):
            mask = int.from_bytes(events[at + 4 : at + 8], sys.byteorder)
            if mask & (_ATTRIBUTES | _IGNORED) and not self._path.exists():
                raise FileNotFoundError(f"{self._path} was deleted while it was in use")
            at += _HEADER + int.from_bytes(events[at + 12 : at + 16], sys.byteorder)
        return True

    def close(self) -> None:
        """Stop watching."""
        os.close(self._fd)
