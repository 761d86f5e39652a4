"""A TCP proxy in front of PostgreSQL that cuts or holds what it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

# ReadyForQuery, outside a transaction: what was asked is committed, explicitly or by the sync.
_COMMITTED = b"Z\x00\x00\x00\x05I"


class Proxy:
    """Passes bytes on, both ways.

    Attributes:
        cut_after: a message of a client that fits is delivered, and the answer that tells of the
            commit ends the connection instead of reaching the client. Used once.
        hold_after: the same, but the first answer is held until `release`.
        down: refuse new connections.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        netloc = f"{parts.username}@127.0.0.1:{port}" if parts.username else f"127.0.0.1:{port}"
        self.url = parts._replace(netloc=netloc).geturl()
        self.cut_after: Callable[[bytes], bool] | None = None
        self.hold_after: Callable[[bytes], bool] | None = None
        self.down = False
        self.cuts = 0
        self.held = threading.Event()
        self._released = threading.Event()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.down:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            self._pairs.append(pair)
            marked = {"cut": False, "hold": False}
            for way in (True, False):
                threading.Thread(target=self._pass, args=(*pair, marked, way), daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket, marked: dict[str, bool], up: bool) -> None:
        source, sink = (client, server) if up else (server, client)
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if up:
                    if self.cut_after is not None and self.cut_after(data):
                        self.cut_after = None
                        marked["cut"] = True
                    if self.hold_after is not None and self.hold_after(data):
                        self.hold_after = None
                        marked["hold"] = True
                elif marked["cut"] and _COMMITTED in data:
                    self.cuts += 1
                    break
                elif marked["hold"]:
                    self.held.set()
                    self._released.wait(30)
                    marked["hold"] = False
                sink.sendall(data)
        self._cut(client, server)

    @staticmethod
    def _cut(*ends: socket.socket) -> None:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def release(self) -> None:
        """Let the held answer through."""
        self._released.set()

    def cut(self) -> None:
        """Cut all connections."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            self._cut(*pair)

    def close(self) -> None:
        self._released.set()
        self._listener.close()
        self.cut()
