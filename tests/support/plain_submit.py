"""A spark-submit without Spark: the job runs in threads of its own process, as it does from a shell.

`install` makes a Spark environment around it. Jobs wait while there is a file `hold`; each that waits is one in `held`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

DIRECTORY = "PLAIN_SUBMIT"


def install(home: Path, python: Path) -> Path:
    """Make a Spark environment of `python` whose spark-submit is this file; return it."""
    (home / "bin").mkdir(parents=True)
    (home / "held").mkdir()
    script = Path(__file__).resolve()
    for name, words in (("python", f'"{python}" "$@"'), ("spark-submit", f'"{python}" "{script}" "$@"')):
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\n{DIRECTORY}="{home}" exec {words}\n')
        program.chmod(0o755)
    return home


def main(argv: list[str]) -> None:
    """Wait as long as is asked, and become the job."""
    home = Path(os.environ[DIRECTORY])
    while (home / "hold").exists():
        (home / "held" / str(os.getpid())).touch()
        time.sleep(0.05)
    (application,) = [number for number, word in enumerate(argv) if word.endswith("__main__.py")]
    os.execv(sys.executable, [sys.executable, *argv[application:]])


if __name__ == "__main__":
    main(sys.argv[1:])
