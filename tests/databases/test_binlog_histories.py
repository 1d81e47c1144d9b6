"""Random histories of tables: the replayed changes equal what the server selects, and what another reader reads."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from lakehouse.platform.sources.binlog.changes import ChangeBatch, DecodedLog, SchemaEvent
from tests.support.binlog import Log, rows_of
from tests.support.mysql import ADMIN, ADMIN_PASSWORD, DatabaseServer
from tests.support.postgresql import HOST

SEEDS = range(2)
STEPS = 60
COLUMNS = {
    "a": "bigint unsigned",
    "b": "varchar(300)",
    "c": "decimal(20,4)",
    "d": "datetime(6)",
    "e": "enum('x','y','z')",
    "f": "varchar(30) character set latin1",
    "g": "double",
    "h": "blob",
    "i": "mediumint",
}
Row = dict[str, Any]


class History:
    """Changes a table at random, in transactions that commit or roll back, and selects it now and then."""

    def __init__(self, log: Log, seed: int) -> None:
        self.random, self.log = Random(seed), log
        self.session = log.server.connect(log.database)
        self.columns = ["a", "b", "c", "d"]
        self.table = "t"
        columns = ", ".join(f"{name} {COLUMNS[name]}" for name in self.columns)
        self.do(f"create table t (k1 int not null, k2 varchar(10) not null, {columns}, primary key (k1, k2))")
        self.states: dict[str, dict[tuple[int, str], Row]] = {}

    def do(self, statement: str, *values: object) -> None:
        with self.session.cursor() as cursor:
            cursor.execute(statement, values or None)

    def value(self, name: str) -> object:
        r = self.random
        if r.random() < 0.3:
            return None
        return {
            "a": lambda: r.choice([0, 1, 2**64 - 1, r.getrandbits(64)]),
            "b": lambda: "ü" * r.choice([0, 1, 100, 300]),
            "c": lambda: Decimal(r.randint(-(10**20) + 1, 10**20 - 1)).scaleb(-4),
            "d": lambda: datetime(r.randint(1000, 9999), 1, r.randint(1, 31), 23, 59, 59, r.randint(0, 999_999)),
            "e": lambda: r.choice("xyz"),
            "f": lambda: "é" * r.randint(0, 30),
            "g": lambda: r.uniform(-1e300, 1e300),
            "h": lambda: r.randbytes(r.choice([0, 5, 300])),
            "i": lambda: r.randint(-(2**23), 2**23 - 1),
        }[name]()

    def insert(self, verb: str) -> None:
        names = ["k1", "k2", *self.columns]
        rows = self.random.randint(1, 4)
        one = f"({', '.join(['%s'] * len(names))})"
        values = [
            value
            for _ in range(rows)
            for value in (self.random.randint(0, 30), self.random.choice("äbc"), *map(self.value, self.columns))
        ]
        duplicates = (
            f" on duplicate key update {self.columns[0]} = values({self.columns[0]})" if verb == "insert" else ""
        )
        self.do(f"{verb} into {self.table} ({', '.join(names)}) values {', '.join([one] * rows)}{duplicates}", *values)

    def change(self) -> None:
        r = self.random
        choice = r.random()
        low = r.randint(0, 30)
        if choice < 0.35:
            self.insert(r.choice(["insert", "replace"]))
        elif choice < 0.65:
            names = r.sample(self.columns, r.randint(1, len(self.columns)))
            values = [self.value(name) for name in names]
            changes = ", ".join(f"{name} = %s" for name in names)
            self.do(f"update {self.table} set {changes} where k1 between {low} and {low + 5}", *values)
        elif choice < 0.8:
            # The order lets keys move to keys that other rows leave in the same statement.
            self.do(f"update {self.table} set k1 = k1 + 1 where k1 >= {low} order by k1 desc, k2")
        elif choice < 0.95:
            self.do(f"delete from {self.table} where k1 between {low} and {low + 3}")
        else:
            self.do(f"update {self.table} set k2 = concat(k2, 'x') where k1 = {low} and length(k2) < 8")

    def alter(self) -> None:
        r = self.random
        free = [name for name in COLUMNS if name not in self.columns]
        choice = r.random()
        if choice < 0.4 and free:
            name = r.choice(free)
            place = r.choice(["first", "", f"after {self.columns[0]}"])
            self.do(f"alter table {self.table} add column {name} {COLUMNS[name]} null {place}")
            self.columns.append(name)
        elif choice < 0.6 and len(self.columns) > 2:
            name = self.columns.pop(r.randrange(len(self.columns)))
            self.do(f"alter table {self.table} drop column {name}")
        elif choice < 0.7:
            self.do(f"truncate table {self.table}")
        elif choice < 0.9:
            other = "s" if self.table == "t" else "t"
            self.do(f"rename table {self.table} to {other}")
            self.table = other
        else:
            self.do(
                f"alter table {self.table} add index i_{r.getrandbits(30)} ({self.columns[0]}), algorithm = inplace"
                if self.columns[0] not in ("b", "h")
                else f"analyze table {self.table}"
            )

    def run(self) -> None:
        """Run the steps, and select the table after some of them."""
        for _ in range(STEPS):
            if self.random.random() < 0.15:
                self.alter()
            else:
                self.do("begin")
                for _ in range(self.random.randint(1, 4)):
                    self.change()
                self.do("rollback" if self.random.random() < 0.15 else "commit")
            if self.random.random() < 0.3:
                self.select()
        self.select()

    def select(self) -> None:
        """Note the rows of the table and the place in the log."""
        names = ["k1", "k2", *self.columns]
        with self.session.cursor() as cursor:
            cursor.execute(f"select {', '.join(names)} from {self.table}")
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        self.states[self.log.now().gtid] = {(row["k1"], row["k2"]): row for row in rows}


class Replay:
    """Applies decoded changes to a dict."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[tuple[int, str], Row]] = {}

    def apply(self, decoded: DecodedLog) -> None:
        """Apply changes of one transaction."""
        for change in decoded.changes:
            name = change.table.table
            if isinstance(change, ChangeBatch):
                self._rows(self.tables[name], change)
            elif change.kind == "create":
                self.tables[name] = {}
            elif change.kind == "truncate":
                self.tables[name].clear()
            elif change.kind == "rename":
                assert isinstance(change, SchemaEvent) and change.renamed_to is not None
                self.tables[change.renamed_to.table] = self.tables.pop(name)

    def _rows(self, rows: dict[tuple[int, str], Row], batch: ChangeBatch) -> None:
        assert batch.key == ("k1", "k2")
        for kind, row in rows_of(batch):
            key = (row["k1"], row["k2"])
            if kind == "delete":
                del rows[key]
            else:
                assert (key in rows) == (kind == "update"), (kind, key)
                rows[key] = row

    def selected(self, names: list[str]) -> dict[tuple[int, str], Row]:
        """Return the rows of the only table with these columns."""
        (rows,) = self.tables.values()
        return {key: {name: row.get(name) for name in names} for key, row in rows.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_replayed_changes_equal_the_table_at_every_noted_place(database_server: DatabaseServer, seed: int) -> None:
    log = Log(database_server)
    history = History(log, seed)
    with closing(history.session):
        history.run()
    replay, compared, positions = Replay(), 0, [log.start.order]
    for decoded in log.read(batch_bytes=1):
        assert decoded.transactions <= 1
        replay.apply(decoded)
        positions += [
            place
            for change in decoded.changes
            for place in (
                [change.position] if isinstance(change, SchemaEvent) else change.rows["_position"].to_pylist()
            )
        ]
        state = history.states.get(decoded.position.gtid)
        if state is not None:
            names = list(next(iter(state.values()), {}))
            assert replay.selected(names) == state
            compared += 1
    assert compared >= len(history.states)
    assert positions == sorted(set(positions))
    whole = Replay()
    for decoded in log.read():
        whole.apply(decoded)
    assert whole.tables == replay.tables


@pytest.mark.filterwarnings("ignore:'(db|passwd)' is deprecated:DeprecationWarning")
def test_rows_are_those_that_mysql_replication_reads(mysql: DatabaseServer) -> None:
    # A MariaDB server that has just started ends the connection of this reader, which then connects without end.
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    log = Log(mysql)
    history = History(log, 99)
    with closing(history.session):
        history.run()
    account = {"host": HOST, "port": mysql.port, "user": ADMIN, "password": ADMIN_PASSWORD}
    stream = BinLogStreamReader(
        connection_settings=account,
        server_id=9_999,
        only_events=[DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent],
        only_schemas=[log.database],
        log_file=log.start.file,
        log_pos=log.start.offset,
        resume_stream=True,
    )
    expected: list[tuple[str, Row]] = []
    for event in stream:
        for row in event.rows:
            if isinstance(event, UpdateRowsEvent):
                old, new = row["before_values"], row["after_values"]
                if (old["k1"], old["k2"]) == (new["k1"], new["k2"]):
                    expected.append(("update", new))
                else:
                    expected += [("delete", {name: old[name] for name in ("k1", "k2")}), ("insert", new)]
            else:
                expected.append(("insert" if isinstance(event, WriteRowsEvent) else "delete", row["values"]))
    stream.close()
    found = [row for batch in log.batches() for row in rows_of(batch)]
    assert len(found) == len(expected) > 100
    for (kind, row), (expected_kind, expected_row) in zip(found, expected, strict=True):
        assert kind == expected_kind
        # It reads an empty blob as an empty text.
        read = {name: b"" if name == "h" and value == "" else value for name, value in expected_row.items()}
        assert {name: row[name] for name in read} == read
