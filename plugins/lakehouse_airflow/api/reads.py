"""Small reads of a table for a web request: a command in Spark's environment without Spark, bounded and cached.

Two commands run at the same time, and a command has a time limit. An answer is kept for some seconds, and its time is
part of the document; requests for the same command wait for one process.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse_airflow.api.catalog import CLOCK
from lakehouse_airflow.commands import command_line
from lakehouse_airflow.job_environment import AUTHOR, catalog_variables, connection_variables

log = logging.getLogger(__name__)
AT_ONCE, LIMIT_S, KEPT_MS, KEPT_ANSWERS = 2, 60, 20_000, 64
_USER_ERRORS = (UserError.exit_code, 69)
_slots = threading.BoundedSemaphore(AT_ONCE)


class _Kept:
    """Answers by the words of their commands, and a lock for each running command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[tuple[str, ...], tuple[int, dict[str, Any]]] = OrderedDict()
        self._running: dict[tuple[str, ...], threading.Lock] = {}

    def lock_of(self, words: tuple[str, ...]) -> threading.Lock:
        with self._lock:
            return self._running.setdefault(words, threading.Lock())

    def get(self, words: tuple[str, ...], now_ms: int) -> tuple[int, dict[str, Any]] | None:
        with self._lock:
            found = self._answers.get(words)
            return found if found is not None and now_ms - found[0] <= KEPT_MS else None

    def keep(self, words: tuple[str, ...], now_ms: int, content: dict[str, Any]) -> None:
        with self._lock:
            self._answers[words] = now_ms, content
            self._answers.move_to_end(words)
            self._running.pop(words, None)
            while len(self._answers) > KEPT_ANSWERS:
                self._answers.popitem(last=False)


_kept = _Kept()


def read_command(words: Sequence[str]) -> dict[str, Any]:
    """Return the JSON of a command that only reads, with `as_of_ms`, the time when it was read.

    Raises UserError and RetryableError as the command does, RetryableError after the time limit.
    """
    key = tuple(words)
    with _kept.lock_of(key):
        found = _kept.get(key, CLOCK.now_ms())
        if found is None:
            now_ms = CLOCK.now_ms()
            found = now_ms, run_json(key)
            _kept.keep(key, *found)
    return {**found[1], "as_of_ms": found[0]}


def run_json(words: Sequence[str], *, author: str = "") -> dict[str, Any]:
    """Run a command and return its JSON; see `read_command` for errors."""
    arguments, environ = command_line(words, os.environ)
    environ |= catalog_variables(os.environ) | connection_variables(os.environ)
    environ |= {AUTHOR: author} if author else {}
    with _slots:
        try:
            done = subprocess.run(arguments, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            name = " ".join(words[:2])
            raise RetryableError(
                f"lakehouse {name} took longer than {LIMIT_S} s and was ended; try again later"
            ) from None
    if done.returncode:
        raise _error(words, done.returncode, done.stderr)
    content: Mapping[str, Any] = json.loads(done.stdout)
    return dict(content)


def _error(words: Sequence[str], exit_code: int, errors: str) -> LakehouseError:
    log.info("lakehouse %s: exit code %s: %s", " ".join(words[:2]), exit_code, errors[-2000:])
    last = errors.strip().rpartition("\n")[2] or f"exit code {exit_code}"
    kind, _, text = last.partition(": ")
    message = text if kind.endswith("Error") and text else last
    if exit_code in _USER_ERRORS:
        return UserError(message)
    return RetryableError(message) if exit_code == RetryableError.exit_code else LakehouseError(message)
