"""Everything that a change has to pass, in one command: formatter, linter, type checker, tests.

    python scripts/check.py [--slow] [PYTEST ARGUMENTS]

All four run even where one fails, so that one run tells everything. `--slow` adds the tests of minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    """Run the checks with this interpreter's tools and say at the end which failed; 0 where none did."""
    slow = "--slow" in arguments
    arguments = [argument for argument in arguments if argument != "--slow"]
    checks = {
        "format": ["ruff", "format", "--check", "."],
        "lint": ["ruff", "check", "."],
        "types": ["mypy"],
        "tests": ["pytest", "-m", "slow or not slow" if slow else "not slow", *arguments],
    }
    failed = []
    for name, command in checks.items():
        print(f"== {name}: python -m {' '.join(command)}", flush=True)
        start = time.monotonic()
        # Tensors of tests are small: more threads only wait for each other, long where the cores have other work.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        code = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment, check=False).returncode
        print(
            f"== {name}: {'exit code ' + str(code) if code else 'ok'}, {time.monotonic() - start:.0f} s",
            flush=True,
        )
        if code:  # pytest's 5, no test was run, is a failure like any other
            failed.append(name)
    print(f"== failed: {', '.join(failed)}" if failed else "== all checks passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
