"""What the store asks of a connection that it opened itself."""

from __future__ import annotations

from typing import Any, Protocol

from lien.commands import Command

ENDED_INSIDE = (
    "the connection of ctx.transaction() was committed or rolled back inside its block: leave that to the block"
)


class OwnDriver(Protocol):
    """A connection of Lien's own: outside a transaction between operations."""

    worn: bool
    """It works, but a fresh one would work better."""

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


class Owned(Protocol):
    """A connection of its own inside an open READ COMMITTED transaction, for a handler's effects."""

    connection: Any
    """The driver's own connection, to be handed to the user, who cannot commit it."""
    driver: Any
    """Carries out operations inside that transaction."""

    def seal(self) -> None:
        """Make sure that the transaction is still the one that was opened. Raises UsageError otherwise."""

    def commit(self) -> Any:
        """Commit (awaited on an event loop)."""

    def rollback(self) -> Any:
        """Roll back (awaited on an event loop); must not raise."""

    def close(self) -> Any:
        """Close the connection (awaited on an event loop); must not raise."""


class Connector(Protocol):
    """Opens connections to one database."""

    def begin(self) -> Owned:
        """A new connection with a transaction open in it."""

    async def abegin(self) -> Owned:
        """The same for the running loop; its commit, rollback and close are awaited."""

    def connect(self) -> OwnDriver:
        """A new connection. Raises the driver's own error."""

    async def aconnect(self) -> OwnAsyncDriver | None:
        """A new connection for the running loop; None when operations must be carried to a thread instead."""

    def wakeup(self, channel: str) -> Wakeup | None:
        """A new source of hints (its own connection where one is needed); None when there is none here."""
