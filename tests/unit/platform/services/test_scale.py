"""Storage requests and catalog statements of a scheduler pass over many tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.run_history import RunOutcome, RunState
from lakehouse.platform.services.schedule import decide
from lakehouse.spec.table.services import SERVICE_SPECS
from tests.bench.decisions import counted, register_copies, small_table

#: Services that the timeline makes due. Orphan cleaning and validation are due by time, so first on a new table.
SERVICES = tuple(spec.name for spec in SERVICE_SPECS if spec.enabled_by_default)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """Return a catalog of twelve tables; a compaction is due only on `bench.t0` and `bench.t10`."""
    home = tmp_path_factory.mktemp("scale")
    with Catalog(Database(f"sqlite:///{home}/catalog.db"), SystemClock()) as opened:
        register_copies(opened, home, 12)
        yield opened


def statements(catalog: Catalog, tables: list[str]) -> int:
    """Return the number of database statements of a scheduler pass over some tables."""
    sent: list[str] = []

    def count(connection: object, cursor: object, statement: str, *_: object) -> None:
        del connection, cursor
        sent.append(statement)

    event.listen(catalog.database.engine, "before_cursor_execute", count)
    try:
        decide(catalog, SERVICES, tables=tables)
    finally:
        event.remove(catalog.database.engine, "before_cursor_execute", count)
    return len(sent)


def test_requests_of_a_table_with_nothing_due_do_not_grow_with_its_timeline(catalog: Catalog, tmp_path: Path) -> None:
    """All services share one listing of the timeline, and the number of reads is constant."""
    home = str(small_table(tmp_path / "long", 12))
    catalog.register_table("bench.long", home)
    catalog.set_policy("bench.long", "compaction", {"max_delta_commits": 99, "log_blocks_threshold": 99})
    catalog.set_policy("bench.long", "clustering", {"max_commits": 99})
    catalog.set_policy("bench.long", "clean", {"commits_retained": 12})
    with counted() as stores:
        choices = decide(catalog, SERVICES, tables=["bench.t1", "bench.t2", "bench.long"])
    catalog.drop_table("bench.long")
    assert len(choices) == 3 * len(SERVICES) and not any(choice.assessed.assessment.due for choice in choices)
    # The reads are the properties, the newest three commits, the index definitions, and the base and the next edit of
    # the TTL rules.
    assert [store.counts() for store in stores] == [{"LIST": 1, "GET": 7, "PUT": 0, "HEAD": 0, "DELETE": 0}] * 3


def test_due_services_are_chosen_among_many_tables(catalog: Catalog) -> None:
    chosen = [c.assessed for c in decide(catalog, SERVICES) if c.chosen]
    assert {c.table for c in chosen} == {"bench.t0", "bench.t10"}
    assert {c.service for c in chosen} == {"compaction"} and all(c.assessment.cost.benefit > 0 for c in chosen)


def test_number_of_catalog_statements_does_not_grow_with_all_tables(catalog: Catalog) -> None:
    names = [entry.identifier for entry in catalog.list_tables()]
    catalog.set_policy("bench", "clean", {"deadline": "1h"})
    assert statements(catalog, []) <= 20
    # A pass over named tables looks up each table by its name.
    assert statements(catalog, names) <= 20 + 3 * len(names)


def test_newest_runs_of_several_tables_equal_the_runs_of_each_table(catalog: Catalog) -> None:
    history, ids = catalog.history, [entry.id for entry in catalog.list_tables()][:3]
    for number in range(4):
        for table in ids:
            history.start(f"r{number}", table, "clean", {"seconds": number})
            history.end(f"r{number}", table, "clean", RunOutcome(state=RunState.COMMITTED, actual={"bytes": 1}))
    found = history.newest_runs(ids[:2], limit=3)
    assert found == {(table, "clean"): history.runs(table, "clean", limit=3) for table in ids[:2]}
    assert history.bytes_since(["clean", "ttl"], 0) == {"clean": 12, "ttl": 0}


def test_decisions_of_a_dropped_table_do_not_prevent_other_decisions(catalog: Catalog) -> None:
    entry = catalog.entry("bench.t11")
    (choice,) = [c for c in decide(catalog, ["clean"], tables=["bench.t11"])]
    assert choice.assessed.table == entry.identifier
    (kept,) = catalog.history.decisions(entry.id, "clean")
    catalog.drop_table("bench.t11")
    other = catalog.entry("bench.t5").id
    before = len(catalog.history.decisions(other, "clean", limit=99))
    catalog.history.decide({(entry.id, "clean"): kept, (other, "clean"): kept})
    assert len(catalog.history.decisions(other, "clean", limit=99)) == before + 1
    assert catalog.history.decisions(entry.id, "clean") == ()
