"""Long-running process that runs the read commands of pages: `python -m lakehouse.cli.reader IDLE_SECONDS`.

    standard input    one `ReaderRequest` per line
    standard output   one `ReaderAnswer` per line, in the same order

Tables stay open between commands, so a command reads only new instants. The process ends when its input is closed, or
after IDLE_SECONDS without a request.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
from contextlib import redirect_stderr, redirect_stdout

from lakehouse.cli.main import main
from lakehouse.cli.table import keep_tables
from lakehouse.errors import LakehouseError
from lakehouse.spec.contracts.reader import ReaderAnswer, ReaderRequest

_READ = 65_536


def serve(requests: int, answers: int, idle_s: float) -> None:
    """Read requests from one file descriptor and write answers to another, until the input is closed or idle.

    Raises UserError for a line that is not a request.
    """
    waiting = b""
    with keep_tables():
        while select.select([requests], [], [], idle_s)[0]:
            part = os.read(requests, _READ)
            if not part:
                return
            *lines, waiting = (waiting + part).split(b"\n")
            for line in lines:
                _write(answers, f"{answer(ReaderRequest.from_json(line)).to_json()}\n".encode())


def answer(request: ReaderRequest) -> ReaderAnswer:
    """Run one command and return its output. A command that tries to exit the process counts as failed."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            exit_code = main(request.words)
        except SystemExit as end:
            exit_code = end.code if isinstance(end.code, int) else LakehouseError.exit_code
    return ReaderAnswer(exit_code=exit_code, output=output.getvalue(), errors=errors.getvalue())


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    # The protocol uses duplicated descriptors, so a library that prints to standard output does not corrupt it.
    _requests, _answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    # Log handlers keep the original standard error. The messages of a command go into its answer.
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    serve(_requests, _answers, float(sys.argv[1]))
