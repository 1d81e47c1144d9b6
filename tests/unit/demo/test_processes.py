"""The demo ends all processes that it started, and a second signal does not interrupt that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demo.processes import PROCESS_OF, end_processes_of, interrupted_by_sigterm, processes_of
from lakehouse.core.system.clock import SystemClock


def test_processes_in_a_session_of_their_own_are_ended_and_those_of_another_home_are_not(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(300)"]
    homes = (tmp_path / "demo", tmp_path / "other")
    started = [
        subprocess.Popen(sleep, env={**os.environ, PROCESS_OF: str(home)}, start_new_session=True) for home in homes
    ]
    try:
        end_processes_of(homes[0], SystemClock())
        assert started[0].wait(timeout=30) != 0
        assert started[1].poll() is None
        assert processes_of(homes[1]) == [started[1].pid]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_interrupts_and_later_ones_do_not_disturb_the_end(number: signal.Signals) -> None:
    ended, before = False, signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupted_by_sigterm():
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), again)
            ended = True
    assert ended
    assert signal.getsignal(signal.SIGINT) is before
