"""A TCP proxy that cuts one connection at a chosen moment and then behaves."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Stands before a server. `cut(marker, delivered=...)` arms it for the next message with that text.

    Delivered: the message reaches the server, the server's whole answer is read and thrown away, and
    only then is the client cut off: what it asked for has happened. Not delivered: the server never
    sees the message.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (str(parts.hostname), int(parts.port or 5432))
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()
        self._armed: tuple[bytes, bool] | None = None
        self._lock = threading.Lock()
        self.cuts = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def cut(self, marker: bytes, *, delivered: bool) -> None:
        self._armed = (marker, delivered)

    def stop(self) -> None:
        """Take no more connections and drop those there are."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                swallow = threading.Event()
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, server, swallow), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, swallow: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                with self._lock:
                    hit = self._armed is not None and self._armed[0] in data
                    delivered = bool(self._armed and self._armed[1])
                    if hit:
                        self._armed = None
                        self.cuts += 1
                if hit and not delivered:
                    break
                if hit:
                    swallow.set()
                server.sendall(data)
        _end(server)
        if not swallow.is_set():
            _end(client)

    @staticmethod
    def _answers(client: socket.socket, server: socket.socket, swallow: threading.Event) -> None:
        swallowed = b""
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if not swallow.is_set():
                    client.sendall(data)
                    continue
                swallowed += data
                # ReadyForQuery inside a transaction: only prepared so far, the commit itself comes next.
                if swallowed.endswith(b"Z\x00\x00\x00\x05T"):
                    client.sendall(swallowed)
                    swallowed = b""
                # ReadyForQuery, outside any transaction: what was asked for is committed.
                if swallowed.endswith(b"Z\x00\x00\x00\x05I"):
                    break
        _end(client)
        _end(server)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
