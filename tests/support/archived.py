"""Collect all results of reading a table, to compare them before and after an archive run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.model.instant import Instant, Timeline

#: Options with which an archive run keeps two commits active and merges archive files in pairs. Each write compacts the
#: metadata table, because an archive run keeps the commits that no compaction contains.
EAGERLY = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.timeline.compaction.batch.size": "2",
    "hoodie.clean.commits.retained": "1",
    "hoodie.metadata.compact.max.delta.commits": "1",
}


def eager(table: Table, **options: str) -> Table:
    """Return the table with the options EAGERLY."""
    env = table.refresh().env
    return Table.open(env.storage.root, options=EAGERLY | options, env=env)


def every_write(table: Table) -> tuple[Instant, ...]:
    """Return the completed writes, archived ones included, in order of completion."""
    found = Timeline((*table.archived(), *table.timeline.writes())).by_completion()
    assert len({instant.requested for instant in found}) == len(found), "an instant is both active and archived"
    return found


def seen(table: Table, key: str = "number", *, ranges: bool = True) -> Mapping[str, Any]:
    """Return the results of reading the table now, as of every write and since every write.

    A read that fails is recorded as the name of its exception class. With `ranges`, every range between two writes is
    read as well.
    """
    writes = every_write(table)
    times = [instant.completion for instant in writes]
    found: dict[str, Any] = {
        "now": _rows(table),
        "schema": table.schema,
        "extra": table.last_commit_extra(key),
        "by value": {value: table.commits_with(key, str(value)) for value in range(len(writes))},
        "changed": [[i.requested for i in table.changes(time)] for time in ("earliest", *times)],
    }
    for instant in writes:
        found[f"as of {instant.requested}"] = _answer(lambda time=instant.requested: _rows(table, as_of=time))
    for start in (None, "earliest", *times):
        for end in (None, *times) if ranges else (None,):
            if start is not None and end is not None and start != "earliest" and end <= start:
                continue
            name = f"{start} to {end}"
            found[name] = _answer(lambda start=start, end=end: _incremental(table, start, end))
            if table.config.cdc is not None:
                found[f"changes {name}"] = _answer(lambda start=start, end=end: _changes(table, start, end))
    return found


def assert_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Assert that two results of `seen` are equal; the message lists the reads that differ."""
    other = [
        f"{name}: {found.get(name)} instead of {wanted[name]}" for name in wanted if found.get(name) != wanted[name]
    ]
    assert not other and found.keys() == wanted.keys(), "\n".join(other)


def _rows(table: Table, **scan: Any) -> list[str]:
    rows = table.scan(**scan).to_arrow().to_pylist()
    return sorted(str({name: value for name, value in row.items() if name not in META_COLUMNS[1:]}) for row in rows)


def _incremental(table: Table, start: str | None, end: str | None) -> list[str]:
    return sorted(map(str, table.incremental(start, end, columns=["id", "p", "v", "ts"]).to_arrow().to_pylist()))


def _changes(table: Table, start: str | None, end: str | None) -> list[str]:
    return list(map(str, table.incremental(start, end, columns=["id", "v"], format="cdc").to_arrow().to_pylist()))


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except LakehouseError as error:
        return type(error).__name__
