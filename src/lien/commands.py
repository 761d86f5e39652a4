"""What an operation may ask of a database, and the two runners that carry it out.

An operation (`Op`) is a generator: it yields commands and receives their rows. It does no I/O itself, so one text
serves synchronous and asynchronous callers. `run` and `arun` are the only places that drive one. An error of a
command is thrown into the operation at the line that asked for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from lien.sqlfile import Statement

R = TypeVar("R")

Row: TypeAlias = tuple[Any, ...]
Params: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fetch:
    """One statement; answers with its rows."""

    statement: Statement
    params: Params


@dataclass(frozen=True, slots=True)
class Many:
    """One statement for each set of parameters; answers with the rows of each."""

    statement: Statement
    params: Sequence[Params]


@dataclass(frozen=True, slots=True)
class Copy:
    """A bulk load through the engine's fastest way in; answers with nothing."""

    statement: Statement
    rows: Iterable[Row]


@dataclass(frozen=True, slots=True)
class Script:
    """One or more statements without parameters, as migrations have them; answers with nothing."""

    statement: Statement


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a transaction; on a borrowed connection the caller's own one is used instead."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit what Begin opened; the runner rolls back when the operation ends any other way."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """Undo everything since Begin, on purpose."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings for the transaction it stands in; a driver whose connection has them for good leaves it out."""

    statement: Statement


@dataclass(frozen=True, slots=True)
class Pipe:
    """Independent commands in one transaction, sent in one round trip where the driver can.

    Answers with the list of the answers of its Fetches.
    """

    commands: tuple[Fetch | Settings, ...]


Command: TypeAlias = Fetch | Many | Copy | Script | Settings | Begin | Commit | Rollback | Pipe
Op: TypeAlias = Generator[Command, Any, R]


class Driver(Protocol):
    """Carries out commands on one synchronous connection."""

    def execute(self, command: Command) -> Any:
        """Carry out one command and give its answer."""

    def abandon(self) -> None:
        """Roll back what Begin opened, if anything; must not raise."""


class AsyncDriver(Protocol):
    """Carries out commands on one asynchronous connection."""

    async def execute(self, command: Command) -> Any:
        """Carry out one command and give its answer."""

    async def abandon(self) -> None:
        """Roll back what Begin opened, if anything; must not raise."""


def run(op: Op[R], driver: Driver) -> R:
    """Drive an operation to its result on a synchronous driver."""
    try:
        command = next(op)
        while True:
            try:
                answer = driver.execute(command)
            except BaseException as error:  # noqa: BLE001 - it is raised where the operation asked
                command = op.throw(error)
            else:
                command = op.send(answer)
    except StopIteration as stop:
        result: R = stop.value
        return result
    except BaseException:
        driver.abandon()
        raise


async def arun(op: Op[R], driver: AsyncDriver) -> R:
    """Drive an operation to its result on an asynchronous driver."""
    try:
        command = next(op)
        while True:
            try:
                answer = await driver.execute(command)
            except BaseException as error:  # noqa: BLE001 - it is raised where the operation asked
                command = op.throw(error)
            else:
                command = op.send(answer)
    except StopIteration as stop:
        result: R = stop.value
        return result
    except BaseException:
        await driver.abandon()
        raise
