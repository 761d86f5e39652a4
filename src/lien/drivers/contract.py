"""What the store asks of a connection that it opened itself."""

from __future__ import annotations

from typing import Any, Protocol

from lien.commands import Command


class OwnDriver(Protocol):
    """A connection of Lien's own: outside a transaction between operations."""

    def execute(self, command: Command) -> Any:
        """Carry out one command and give its answer."""

    def abandon(self) -> None:
        """Roll back what Begin opened, if anything; must not raise."""

    def alive(self) -> bool:
        """Ask the server; False when the connection is of no more use."""

    def close(self) -> None:
        """Close it; must not raise."""


class OwnAsyncDriver(Protocol):
    """The same on an event loop."""

    async def execute(self, command: Command) -> Any:
        """Carry out one command and give its answer."""

    async def abandon(self) -> None:
        """Roll back what Begin opened, if anything; must not raise."""

    async def alive(self) -> bool:
        """Ask the server; False when the connection is of no more use."""

    async def close(self) -> None:
        """Close it; must not raise."""


class Wakeup(Protocol):
    """Waits for a hint that work may have come. A hint: a missed one costs one poll."""

    def wait(self, seconds: float) -> bool:
        """Block until a hint comes (True) or ``seconds`` have passed (False). Raises when the source is broken."""

    def check(self) -> None:
        """Ask the source whether it still works: a connection cut without a word shows itself here. Raises then."""

    def interrupt(self) -> None:
        """Make ``wait`` return at once, from any thread."""

    def close(self) -> None:
        """Close it; must not raise."""


class Connector(Protocol):
    """Opens connections to one database."""

    def connect(self) -> OwnDriver:
        """A new connection. Raises the driver's own error."""

    async def aconnect(self) -> OwnAsyncDriver | None:
        """A new connection for the running loop; None when operations must be carried to a thread instead."""

    def wakeup(self, channel: str) -> Wakeup | None:
        """A new source of hints (its own connection where one is needed); None when there is none here."""
