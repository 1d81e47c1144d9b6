"""Install packages into a virtual environment and show the progress: `python tests/environments.py DIR PIP-ARGUMENTS`.

make runs it before any environment exists, so it imports the standard library only. The whole output of uv or pip is in
the file `pip.log` of the environment.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

#: Without a terminal a line is printed when the phase changes and after this time.
_REPEAT_S, _POLL_S = 10.0, 0.5
_TAIL_LINES = 30
_WIDTH = 100
#: uv trusts the certificates of the system, as pip does.
_UV = {"UV_SYSTEM_CERTS": "true"}


class Phase:
    """What the installer is doing, from the lines that it prints and from the packages that are there."""

    def __init__(self, packages: Path, name: str = "reading the list of packages") -> None:
        self._packages = packages
        self.name, self.detail = name, ""
        self._seen = self._total = self._before = 0

    def line(self, text: str) -> None:
        """Take one line of pip's output."""
        words = text.split()
        if text.startswith(("Collecting ", "Requirement already satisfied: ")):
            self._seen += 1
            self._set("collecting", f"{self._seen} packages, {words[1] if words[0] == 'Collecting' else words[3]}")
        elif text.startswith("Downloading "):
            self._set("collecting", f"{self._seen} packages, downloading {' '.join(words[1:])}")
        elif text.startswith(("Building wheel", "Preparing metadata", "Installing build dependencies")):
            self._set("building", " ".join(words[:6]))
        elif text.startswith("Installing collected packages:"):
            self._before, self._total = self._installed(), text.count(",") + 1
            self._set("installing", f"0 of {self._total} packages")

    def poll(self) -> None:
        """Count the installed packages. pip prints nothing while it installs and compiles."""
        if self.name == "installing":
            done = min(max(self._installed() - self._before, 0), self._total)
            self.detail = f"{done} of {self._total} packages"

    def _set(self, name: str, detail: str) -> None:
        self.name, self.detail = name, detail

    def _installed(self) -> int:
        return len(list(self._packages.glob("*.dist-info")))


class Line:
    """The line with the phase: rewritten on a terminal, printed now and then elsewhere."""

    def __init__(self, output: TextIO, label: str) -> None:
        self._output, self._label, self._started = output, label, time.monotonic()
        self._phase, self._printed = "", 0.0

    def show(self, phase: Phase) -> None:
        """Show the phase and the elapsed time."""
        now = time.monotonic()
        text = (
            f"    {self._label}: {phase.name}, {phase.detail}" if phase.detail else f"    {self._label}: {phase.name}"
        )
        elapsed = f", {now - self._started:.0f} s"
        if self._output.isatty():
            self._output.write("\r" + (text[: _WIDTH - len(elapsed)] + elapsed).ljust(_WIDTH))
        elif phase.name != self._phase or now - self._printed > _REPEAT_S:
            self._output.write(text + elapsed + "\n")
            self._phase, self._printed = phase.name, now
        self._output.flush()

    def end(self, text: str) -> None:
        """Print the last line."""
        begin = "\r" if self._output.isatty() else ""
        line = f"    {self._label}: {text} after {time.monotonic() - self._started:.0f} s"
        self._output.write(f"{begin}{line.ljust(_WIDTH) if begin else line}\n")
        self._output.flush()


def install(venv: Path, arguments: list[str], output: TextIO) -> int:
    """Install packages into the environment, show the progress, and return the exit code.

    uv installs them if it is on the PATH, because it takes a tenth of the time. pip installs them otherwise, and also
    if uv fails: uv does not read pip's configuration, which may name another index.
    """
    python = str(venv / "bin" / "python")
    log, line = venv / "pip.log", Line(output, venv.name)
    packages = next(iter(sorted((venv / "lib").glob("python3*/site-packages"))), venv)
    uv = shutil.which("uv")
    if uv is not None:
        phase = Phase(packages, "installing with uv")
        # Compiled once here, as pip does, and not by each process that may not write into the environment.
        if _run([uv, "pip", "install", "--compile-bytecode", "--python", python, *arguments], log, phase, line) == 0:
            line.end("ready")
            return 0
        line.end("uv failed and pip is used instead; uv ended")
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *arguments]
    code = _run(command, log, Phase(packages), line)
    if code == 0:
        line.end("ready")
        return 0
    line.end(f"pip failed with exit code {code}")
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    output.write("\n".join([*tail, f"(the whole output: {log})", ""]))
    return code


def _run(command: list[str], log: Path, phase: Phase, line: Line) -> int:
    """Run a command, add its output to the log, show its phase, and return the exit code."""
    with (
        log.open("a", encoding="utf-8") as kept,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**_UV, **os.environ}
        ) as process,
    ):
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        while process.poll() is None or reader.is_alive() or not lines.empty():
            try:
                text = lines.get(timeout=_POLL_S)
            except queue.Empty:
                phase.poll()
            else:
                kept.write(text)
                phase.line(text.strip())
            line.show(phase)
    return process.returncode


def _read(stream: TextIO, lines: queue.Queue[str]) -> None:
    for text in stream:
        lines.put(text)


if __name__ == "__main__":
    sys.exit(install(Path(sys.argv[1]), sys.argv[2:], sys.stdout))
