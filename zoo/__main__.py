"""`python -m zoo` is the command `zoo`."""

from __future__ import annotations

from zoo.cli import main

if __name__ == "__main__":
    main()
