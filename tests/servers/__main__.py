"""Keeps a PostgreSQL server up until Ctrl-C and prints its URL."""

from __future__ import annotations

import argparse
import contextlib
import signal

from tests.servers.postgres import PostgresServer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    parser.add_argument("--fsync", action="store_true", help="let a commit wait for the disk")
    arguments = parser.parse_args()
    server = PostgresServer()
    with contextlib.suppress(KeyboardInterrupt):
        print(server.start(fsync=arguments.fsync).url(), flush=True)
        signal.pause()
    server.close()


if __name__ == "__main__":
    main()
