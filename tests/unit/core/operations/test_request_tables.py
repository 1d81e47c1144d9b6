"""The tables of docs/performance.md state the requests of small commits, by purpose; the operations send exactly these.

The table has three partitions with one small file each. `python -m tests.unit.core.operations.test_request_tables`
prints the rows of both tables.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from lakehouse.core.env import Env
from lakehouse.core.system.process_state import ProcessState
from lakehouse.core.table.table import Table
from tests.support.killed import batch
from tests.support.requests import PURPOSES, ObjectStore, RequestLog

PAGE = Path(__file__).resolve().parents[4] / "docs" / "performance.md"
VERBS = ("GET", "LIST", "PUT", "DELETE")
_numbers = itertools.count(1)


def rows(value: int, first: int = 0, count: int = 3):
    return batch({(p, f"{p}{i}"): value for p in "abc" for i in range(first, first + count)})


def opened(store: RequestLog) -> Table:
    """Return the table as another process opens it."""
    return Table.open(store.root, env=Env(storage=store, process_state=ProcessState()))


def made(table_type: str) -> tuple[Table, RequestLog]:
    """Return a table with rows in three partitions, written by this process, and its request log."""
    store = RequestLog(ObjectStore(f"s3://lake/requests-{next(_numbers)}"))
    env = Env(storage=store, process_state=ProcessState())
    table = Table.create(
        store.root, name="t", record_key="id", partition_by="p", ordering="ts", table_type=table_type, env=env
    )
    table.bulk_insert(rows(1))
    return table, store


class Measured:
    """The requests of one operation: by purpose and verb, and the number of times that it waited for the store."""

    def __init__(self, store: RequestLog, operation: Callable[[], object]) -> None:
        store.reset()
        operation()
        self.purposes, self.steps = store.purposes(), store.steps()

    def cell(self, purpose: str) -> str:
        """Return the requests with one purpose as a cell of the table."""
        return ", ".join(f"{n} {verb}" for verb in VERBS if (n := self.purposes[purpose, verb]))

    def total(self, verb: str) -> int:
        """Return the number of requests with one verb."""
        return sum(n for (_, of), n in self.purposes.items() if of == verb)


@cache
def measured() -> dict[str, Measured]:
    """Return the measured operations by the name of their column."""
    table, store = made("COPY_ON_WRITE")
    operations = {"first upsert of a process": Measured(store, lambda: table.upsert(rows(2)))}
    table.upsert(rows(3))
    operations["upsert"] = Measured(store, lambda: table.upsert(rows(4)))
    table.bulk_insert(rows(1, 3, 2))
    operations["bulk_insert"] = Measured(store, lambda: table.bulk_insert(rows(1, 5, 2)))
    operations["scan"] = Measured(store, lambda: table.scan().to_arrow())
    operations["scan by a new process"] = Measured(store, lambda: opened(store).scan().to_arrow())
    operations["upsert by a new process"] = Measured(store, lambda: opened(store).upsert(rows(5)))
    table, store = made("MERGE_ON_READ")
    for value in (2, 3):
        table.upsert(rows(value))
    operations["upsert, merge-on-read"] = Measured(store, lambda: table.upsert(rows(4)))
    operations["compaction"] = Measured(store, lambda: table.services.compaction.run(force=True))
    return operations


#: The columns of the first table.
COLUMNS = ("upsert", "bulk_insert", "upsert, merge-on-read", "compaction", "scan")


def purposes() -> list[list[str]]:
    """Return the rows of the first table."""
    columns = [measured()[name] for name in COLUMNS]
    lines = [[purpose, *(column.cell(purpose) for column in columns)] for purpose in (*PURPOSES, "cleanup")]
    return [line for line in lines if any(line[1:])]


def totals() -> dict[str, list[str]]:
    """Return the cells of the second table by operation, without those of earlier releases."""
    return {
        name: [*(str(operation.total(verb)) for verb in VERBS), str(operation.steps)]
        for name, operation in measured().items()
    }


def table_after(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading of the page, without its header."""
    lines = PAGE.read_text(encoding="utf-8").partition(f"{heading}\n")[2].splitlines()
    lines = list(
        itertools.takewhile(lambda line: line.startswith("|"), itertools.dropwhile(lambda line: line[:1] != "|", lines))
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_page_has_the_requests_of_each_purpose() -> None:
    assert table_after("### Requests of one commit") == purposes()


def test_page_has_the_number_of_requests_of_each_operation() -> None:
    stated = {line[0]: line[1 : len(VERBS) + 2] for line in table_after("<!-- totals of requests -->")}
    assert stated == totals()


@pytest.mark.parametrize("name", COLUMNS)
def test_operation_sends_no_head_request(name: str) -> None:
    assert Counter(verb for _, verb in measured()[name].purposes)["HEAD"] == 0


if __name__ == "__main__":
    for line in purposes():
        print("| " + " | ".join(line) + " |")
    for name, cells in totals().items():
        print("| " + " | ".join([name, *cells]) + " |")
