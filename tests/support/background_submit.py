"""A spark-submit in cluster mode without Spark: it starts the job as a process of its own and ends.

`install` creates a Spark environment that contains it. The job runs in a folder of its own with the files of
`spark.yarn.dist.files`, gets the variables of `spark.yarn.appMasterEnv`, and waits while the file `hold` exists. It
reports its end to a `RunningYarn`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.support.fake_clusters import Answer, FakeYarn

DIRECTORY, MANAGER = "BACKGROUND_SUBMIT", "BACKGROUND_MANAGER"
_DRIVER_ENV = "spark.yarn.appMasterEnv."


class RunningYarn(FakeYarn):
    """A resource manager whose drivers report their states."""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        """Answer as a resource manager; `/state` sets the state of the newest application."""
        if path == "/state":
            self.finish(body["state"], body["reason"])
            return 200, {}
        return super().answer(method, path, query, body)


def install(home: Path, python: Path, manager: str) -> Path:
    """Create a Spark environment in `home` with this Python and with this file as its spark-submit; return `home`."""
    (home / "bin").mkdir(parents=True)
    script = Path(__file__).resolve()
    for name, words in (("python", f'"{python}" "$@"'), ("spark-submit", f'"{python}" "{script}" "$@"')):
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\n{DIRECTORY}="{home}" {MANAGER}="{manager}" exec {words}\n')
        program.chmod(0o755)
    return home


def main(argv: list[str]) -> None:
    """Register an application, start its driver in the background, and end as spark-submit does on YARN."""
    if argv[0] == "--driver":
        drive(argv[1:])
        return
    conf = dict(_pairs(argv))
    number = _post("/submit", {"tags": conf["spark.yarn.tags"]})["id"]
    variables = {key.removeprefix(_DRIVER_ENV): text for key, text in conf.items() if key.startswith(_DRIVER_ENV)}
    container = Path(os.environ[DIRECTORY]) / "containers" / str(number)
    container.mkdir(parents=True)
    for path in filter(None, conf.get("spark.yarn.dist.files", "").split(",")):
        shutil.copy(path, container)
    (application,) = [place for place, word in enumerate(argv) if word.endswith("__main__.py")]
    with (container / "driver.log").open("wb") as log:
        subprocess.Popen(
            [sys.executable, __file__, "--driver", *argv[application:]],
            env={**os.environ, **variables},
            cwd=container,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    print(f"INFO Client: Submitted application {number}")


def drive(words: Sequence[str]) -> None:
    """Run the job when the file `hold` is gone, and report its end."""
    _post("/state", {"state": "running", "reason": ""})
    while (Path(os.environ[DIRECTORY]) / "hold").exists():
        time.sleep(0.05)
    done = subprocess.run([sys.executable, *words], check=False)
    reason = f"the driver ended with exit code {done.returncode}" if done.returncode else ""
    _post("/state", {"state": "failed" if done.returncode else "succeeded", "reason": reason})


def _pairs(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, word in enumerate(argv):
        if word == "--conf":
            key, _, text = argv[place + 1].partition("=")
            yield key, text


def _post(path: str, body: Any) -> Any:
    request = Request(os.environ[MANAGER] + path, data=json.dumps(body).encode(), method="POST")
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main(sys.argv[1:])
