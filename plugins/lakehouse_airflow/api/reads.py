"""Reads a table for a web request with a command in Spark's environment that starts no Spark.

Reads are limited and cached.

The number of concurrent commands is limited (see `lakehouse_airflow.api.pools`), and each command has a time limit. An
answer or an error is cached for some seconds; the document contains the time of the read. Concurrent requests for the
same command share one read. Table reads run in long-running processes (`lakehouse_airflow.api.readers`); each change or
preview runs in a new process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse_airflow.api.catalog import CLOCK
from lakehouse_airflow.api.pools import READS
from lakehouse_airflow.api.readers import ReaderCommand, ReaderLimits, Readers, reader_command
from lakehouse_airflow.commands import command_line
from lakehouse_airflow.job_environment import AUTHOR, catalog_variables, connection_variables

log = logging.getLogger(__name__)
LIMIT_S, KEPT_MS, KEPT_ANSWERS = 60, 20_000, 64
_USER_ERRORS = (UserError.exit_code, 69)
_Words = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The document or the error of a read, with the time at which the read started."""

    at_ms: int
    content: Mapping[str, Any] | None = None
    error: LakehouseError | None = None

    def document(self) -> dict[str, Any]:
        if self.error is not None:
            # Several requests raise the same error object, and each would add to its traceback.
            raise self.error.with_traceback(None)
        return {**(self.content or {}), "as_of_ms": self.at_ms}


class _Answers:
    """Cached answers by command line, and the running reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[_Words, _Answer] = OrderedDict()
        self.running: dict[_Words, Future[_Answer]] = {}

    def get(self, words: _Words, now_ms: int) -> _Answer | None:
        with self._lock:
            answer = self._answers.get(words)
            return answer if answer is not None and now_ms - answer.at_ms <= KEPT_MS else None

    def keep(self, words: _Words, answer: _Answer) -> None:
        with self._lock:
            self._answers[words] = answer
            self._answers.move_to_end(words)
            while len(self._answers) > KEPT_ANSWERS:
                self._answers.popitem(last=False)

    def end(self, words: _Words, future: Future[_Answer]) -> None:
        with self._lock:
            if self.running.get(words) is future:
                del self.running[words]


_answers = _Answers()


async def read_command(user: str, table: str, words: Sequence[str], check: Callable[[], None]) -> dict[str, Any]:
    """Run a read command and return its JSON document, with the time of the read as `as_of_ms`.

    Args:
        user: Name of the user, for the limit on reads per user.
        table: The table that the command reads. Commands with the same value run in one process, one after the other.
        words: The arguments of the command.
        check: Raises an error for a request that must not be served; it may block.

    Raises:
        UserError: The command failed with it.
        RetryableError: The command failed with it, the time limit was reached, or too many reads are running.
    """
    key = tuple(words)
    answer = _answers.get(key, CLOCK.now_ms())
    if answer is not None:
        return answer.document()
    future = _answers.running.get(key)
    if future is None or future.done():
        future = READS.submit(user, lambda: _answer(table, key, check))
        _answers.running[key] = future
        future.add_done_callback(lambda ended: _answers.end(key, ended))
    # A client that disconnects cancels its own wait, not the shared read.
    return (await asyncio.shield(asyncio.wrap_future(future))).document()


def _answer(table: str, words: _Words, check: Callable[[], None]) -> _Answer:
    """Run the command and cache its document or error, so that a failed read is not repeated immediately."""
    now_ms = CLOCK.now_ms()
    try:
        check()
        answer = _Answer(at_ms=now_ms, content=_read_json(table, words))
    except LakehouseError as error:
        # A failed read may have taken long, so its cache entry starts at its end.
        answer = _Answer(at_ms=CLOCK.now_ms(), error=error)
    _answers.keep(words, answer)
    return answer


def _read_json(table: str, words: _Words) -> dict[str, Any]:
    """Run a read command in a long-running process. Raise the error of the command."""
    done = _READERS.read(table, words)
    if done.exit_code:
        raise _error(words, done.exit_code, done.errors)
    return _document(words, done.output)


def _reader_command() -> ReaderCommand:
    return reader_command(*_with_variables(()))


def _with_variables(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    arguments, environ = command_line(words, os.environ)
    return arguments, environ | catalog_variables(os.environ) | connection_variables(os.environ)


_READERS = Readers(command=_reader_command, clock=CLOCK, limits=ReaderLimits(answer_s=LIMIT_S))


def run_json(words: Sequence[str], *, author: str = "") -> dict[str, Any]:
    """Run a command in a new process and return its JSON. Raise its error, or RetryableError after the time limit."""
    arguments, environ = _with_variables(words)
    environ |= {AUTHOR: author} if author else {}
    name = " ".join(words[:2])
    try:
        done = subprocess.run(arguments, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise RetryableError(f"lakehouse {name} took longer than {LIMIT_S} s and was ended; try again later") from None
    except (OSError, ValueError) as error:
        raise LakehouseError(f"lakehouse {name} cannot be started: {error}") from error
    if done.returncode:
        raise _error(words, done.returncode, done.stderr)
    return _document(words, done.stdout)


def _document(words: Sequence[str], output: str) -> dict[str, Any]:
    try:
        content: Mapping[str, Any] = json.loads(output)
    except ValueError as error:
        raise LakehouseError(f"lakehouse {' '.join(words[:2])} printed no JSON: {error}") from error
    return dict(content)


def _error(words: Sequence[str], exit_code: int, errors: str) -> LakehouseError:
    log.info("lakehouse %s: exit code %s: %s", " ".join(words[:2]), exit_code, errors[-2000:])
    last = errors.strip().rpartition("\n")[2] or f"exit code {exit_code}"
    kind, _, text = last.partition(": ")
    message = text if kind.endswith("Error") and text else last
    if exit_code in _USER_ERRORS:
        return UserError(message)
    return RetryableError(message) if exit_code == RetryableError.exit_code else LakehouseError(message)
