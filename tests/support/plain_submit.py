"""A spark-submit without Spark: the job runs in the called process, as it does from a shell.

`install` creates a Spark environment that contains it. A job waits while the file `hold` exists; each waiting job has a
file in the folder `held`. The job `ingest stream` is that of `tests.support.fake_stream`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

DIRECTORY = "PLAIN_SUBMIT"


def install(home: Path, python: Path) -> Path:
    """Create a Spark environment in `home` with this Python and with this file as its spark-submit; return `home`."""
    (home / "bin").mkdir(parents=True)
    (home / "held").mkdir()
    script = Path(__file__).resolve()
    for name, words in (("python", f'"{python}" "$@"'), ("spark-submit", f'"{python}" "{script}" "$@"')):
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\n{DIRECTORY}="{home}" exec {words}\n')
        program.chmod(0o755)
    return home


def main(argv: list[str]) -> None:
    """Wait until the file `hold` is gone, then replace this process by the job."""
    home = Path(os.environ[DIRECTORY])
    while (home / "hold").exists():
        (home / "held" / str(os.getpid())).touch()
        time.sleep(0.05)
    if "stream" in argv:
        os.execv(sys.executable, [sys.executable, "-m", "tests.support.fake_stream", *argv])
    (application,) = [number for number, word in enumerate(argv) if word.endswith("__main__.py")]
    os.execv(sys.executable, [sys.executable, *argv[application:]])


if __name__ == "__main__":
    main(sys.argv[1:])
