"""PostgreSQL for the tests: found or fetched, private, and gone when the tests are.

By hand: `python -m tests.servers` prints a URL and keeps a server up until Ctrl-C.
"""

from tests.servers.binaries import NoPostgres, find_binaries, machine_binaries, wheel_binaries
from tests.servers.databases import Databases
from tests.servers.postgres import PostgresServer
from tests.servers.shared import SharedPostgres

__all__ = [
    "Databases",
    "NoPostgres",
    "PostgresServer",
    "SharedPostgres",
    "find_binaries",
    "machine_binaries",
    "wheel_binaries",
]
