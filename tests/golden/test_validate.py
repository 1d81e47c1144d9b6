"""Test that validation finds no problems in tables of Apache Hudi except the known ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.metadata.validation import Validated
from lakehouse.core.table.table import Table
from tests.support.fixture_tables import FixtureTable, load_fixture_tables

_, _, KEY, PATH, _ = META_COLUMNS
TABLES = [pytest.param(table, id=table.name) for table in load_fixture_tables() if table.is_supported]
#: Tables whose writer was deliberately stopped during a write.
INTERRUPTED = ("mor_v6_state_deltacommit_inflight",)


def has_keys_twice(fixture: FixtureTable) -> bool:
    """Return whether Hudi's own result has a record key twice, after an insert of an existing key."""
    rows = fixture.expected()
    if rows is None or not fixture.has_meta_fields:
        return False
    keys = Counter(zip(*rows.select([PATH, KEY]).to_pydict().values(), strict=True))
    return any(times > 1 for times in keys.values())


@pytest.mark.parametrize("fixture", TABLES)
def test_validation_finds_no_problem_in_tables_of_hudi(fixture: FixtureTable, tmp_path: Path) -> None:
    table = Table.open(str(fixture.unpack(tmp_path)))
    shallow, deep = table.validate(), table.validate(deep=True)
    expected = {"timeline.dead"} if fixture.name in INTERRUPTED else set()
    assert {finding.invariant for finding in shallow.findings} == expected
    expected |= {"key.unique"} if has_keys_twice(fixture) else set()
    assert {finding.invariant for finding in deep.findings} == expected
    assert not deep.corrupt and deep.rows >= fixture.entry["snapshot"]["rows"]
    if fixture.times:
        assert isinstance(table.services.validation.run(force=True), Validated)
