"""``python -m lien``: the command line."""

from __future__ import annotations

from lien.cli import main

if __name__ == "__main__":
    main()
