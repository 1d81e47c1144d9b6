"""Runs of the command line that SIGKILL ends at a commit, or before the log is confirmed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: Runs the command line; the process is killed before or after commit number n of the run is completed, or before the
#: server learns that its log is not needed any more. It prints the arguments of all processes.
_KILLED = """
import os, signal, sys
from lakehouse.cli.main import main
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.model.instant import Action
from lakehouse.platform.ingest import databases

complete, left = TimelineStore.complete, [int(sys.argv[2])]

def kill(*args):
    print(open("/proc/self/cmdline").read(), *os.popen(f"ps -o args= --ppid {os.getpid()}"), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def killed(self, instant, *args, **kwargs):
    left[0] -= instant.action in (Action.COMMIT, Action.DELTACOMMIT) and "/metadata" not in self._env.storage.root
    if left[0] or sys.argv[1] == "after":
        found = complete(self, instant, *args, **kwargs)
    if left[0] == 0:
        kill()
    return found

if sys.argv[1] == "confirm":
    databases._confirm = kill
else:
    TimelineStore.complete = killed
sys.exit(main(sys.argv[3:]))
"""


def killed_run(folder: Path, connection: Mapping[str, str], moment: str, commit: int = 1) -> str:
    """Run the spec `shop.yaml` of a folder until the process is killed; return what it printed.

    `moment` is `before` or `after`, for the commit of this number, or `confirm`.
    """
    words = [sys.executable, "-c", _KILLED, moment, str(commit), "ingest", "run", "--table", "shop.yaml"]
    environ = {**os.environ, **connection, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout + done.stderr
