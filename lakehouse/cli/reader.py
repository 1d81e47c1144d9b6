"""A process that stays and runs the read commands of pages: `python -m lakehouse.cli.reader IDLE_SECONDS`.

    standard input    one `ReaderRequest` per line
    standard output   one `ReaderAnswer` per line, in the same order

Opened tables stay open between commands, so a command reads only what is new. The process ends when its input is
closed, or after IDLE_SECONDS without a request.
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
    """Answer the requests of one file descriptor on another until the input is closed or idle.

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
    """Run one command and return what it printed. A command that ends the process is a failed command."""
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
    # The protocol has descriptors of its own: a library that prints to standard output does not disturb it.
    _requests, _answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    # Handlers get the stream that is standard error now; a command's own messages go into its answer.
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    serve(_requests, _answers, float(sys.argv[1]))
