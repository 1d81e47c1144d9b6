"""Processes of a soak test: writers, services and readers that run until they are killed.

Each keeps a journal, one JSON line a fact, on disk before and after what it tells of:

    {"begin": change}    {"done": name, "at": seconds}    {"lost": name, "tries"}    {"unknown": name}
    {"seen": digest}     {"failed": text}
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from lakehouse.core.table.table import Table
from lakehouse.errors import CommitStateUnknownError, RetryableError, UserError
from tests.simulation.actors import NON_BLOCKING, OPTIMISTIC, PARTIAL
from tests.simulation.invariants import rows_of
from tests.simulation.model import Change, Rows
from tests.simulation.tables import batch, row_of

OLDER = {"hoodie.write.table.version": "6"}
#: kind of table -> type, options of its creation, ordered by a column, mode
KINDS: dict[str, tuple[str, dict[str, str], bool, dict[str, str]]] = {
    "copy-on-write, optimistic": ("COPY_ON_WRITE", {}, False, OPTIMISTIC),
    "merge-on-read, optimistic": ("MERGE_ON_READ", {}, False, OPTIMISTIC),
    "merge-on-read, non-blocking": (
        "MERGE_ON_READ",
        {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
        True,
        NON_BLOCKING,
    ),
    "copy-on-write, version 6": ("COPY_ON_WRITE", OLDER, False, OPTIMISTIC),
    "merge-on-read, version 6": ("MERGE_ON_READ", OLDER, False, OPTIMISTIC),
}
OPTIONS = {
    "hoodie.log.compaction.blocks.threshold": "3",
    "hoodie.write.num.retries.on.conflict.failures": "4",
    "hoodie.write.set.null.for.missing.columns": "true",
    "hoodie.clean.commits.retained": "200",
}
STORED = tuple((p, f"{p}{i}") for p in ("a", "b", "c", "d") for i in range(8))
_VERBS = ("upsert", "upsert", "insert", "partial", "delete")
SERVICES: dict[str, Callable[[Table], object]] = {
    "planner": lambda table: table.services.compaction.schedule(),
    "compactor": lambda table: table.services.compaction.run(),
    "log compactor": lambda table: table.services.log_compaction.run(),
    "rollback": lambda table: table.rollback_failed(),
    "clean": lambda table: table.services.clean.run(),
}


class Journal:
    """Journal of one process on disk, written line by line before it continues."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def note(self, fact: Mapping[str, Any]) -> None:
        """Append a line and sync it."""
        self._file.write(json.dumps(fact).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def act(role: str, number: int, kind: str, place: str, journal: str, seed: int) -> None:
    """Run a role until the process is killed."""
    notes = Journal(Path(journal))
    try:
        if role == "writer":
            _write_on(number, kind, place, notes, Random(seed))
        elif role == "reader":
            _read_on(place, notes)
        else:
            _serve_on(role, place)
    except BaseException:
        notes.note({"failed": f"{role}: {traceback.format_exc()}"})
        raise


def digest(rows: Rows) -> str:
    """Return a short text that identifies a state of the table."""
    state = sorted((partition, key, sorted(row.items())) for (partition, key), row in rows.items())
    return hashlib.blake2b(json.dumps(state).encode(), digest_size=12).hexdigest()


def stored_change(fact: Mapping[str, Any]) -> Change:
    """Return the change of a journal entry."""
    rows = {(partition, key): row for partition, key, row in fact["rows"]}
    return Change(name=fact["name"], verb=fact["verb"], rows=rows)


def _write_on(number: int, kind: str, place: str, notes: Journal, random: Random) -> None:
    _, _, ordered, mode = KINDS[kind]
    lost = _LostTries()
    logging.getLogger("lakehouse.core.operations.write.write").addHandler(lost)
    logging.getLogger("lakehouse.core.operations.write.write").setLevel(logging.INFO)
    mine: list[tuple[str, str]] = []
    while True:
        value = time.time_ns() // 1000 * 16 + number
        change = _change(random, f"w{number}.{value}", value, mine, ordered)
        rows = [(partition, key, row) for (partition, key), row in change.rows.items()]
        notes.note({"begin": {"name": change.name, "verb": change.verb, "rows": rows}})
        lost.number = 0
        try:
            _apply(Table.open(place, options=OPTIONS | mode | (PARTIAL if change.verb == "partial" else {})), change)
        except CommitStateUnknownError:
            notes.note({"unknown": change.name})
        except RetryableError as error:
            notes.note({"lost": change.name, "tries": lost.number, "why": str(error)})
        else:
            notes.note({"done": change.name, "tries": lost.number, "at": time.time()})


def _change(random: Random, name: str, value: int, mine: list[tuple[str, str]], ordered: bool) -> Change:
    """Draw a random change; it also deletes rows of earlier inserts, so that the table stays small."""
    verb = random.choice(_VERBS[:3] if ordered else _VERBS)
    if verb == "insert":
        keys = [(random.choice("abcd"), f"i{name}")]
        mine += keys
    elif verb == "delete":
        keys = [random.choice(STORED), *mine]
        mine.clear()
    else:
        keys = random.sample(STORED, 2)
    rows: Rows = {key: row_of(value, ordered=ordered) for key in keys}
    if verb == "partial":
        rows = {key: {random.choice("vw"): value} for key in keys[:1]}
    return Change(name=name, verb=verb, rows=rows)


def _apply(table: Table, change: Change) -> None:
    did = {"did": change.name}
    rows = batch(dict(change.rows))
    if change.verb == "delete":
        table.delete(rows.select(["id", "p"]), commit_metadata=did, allow_empty=True)
    elif change.verb == "insert":
        table.insert(rows, commit_metadata=did)
    else:
        table.upsert(rows, commit_metadata=did, allow_empty=True)


def _read_on(place: str, notes: Journal) -> None:
    while True:
        try:
            notes.note({"seen": digest(rows_of(Table.open(place)))})
        except RetryableError:
            continue
        time.sleep(0.05)


def _serve_on(role: str, place: str) -> None:
    while True:
        try:
            SERVICES[role](Table.open(place, options=OPTIONS | OPTIMISTIC))
        except (RetryableError, CommitStateUnknownError):
            pass
        except UserError as error:
            # Another process completed the plan before it was claimed.
            if "is completed" not in str(error):
                raise
        time.sleep(0.3)


class _LostTries(logging.Handler):
    """Counts the tries of the current write that failed with a conflict."""

    number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a conflict that the write logged."""
        if "lost" in str(record.msg):
            self.number += 1
