"""Assert that lakehouse and Apache Hudi return the same results for the same reads."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa

from lakehouse.core.table.table import Table
from tests.support.fixture_tables import canonical_rows
from tests.support.hudi import Hudi
from tests.support.hudi_rs import like


def assert_same(ours: pa.Table, theirs: pa.Table) -> None:
    """Compare rows, keys and commit times; the order of rows and columns does not matter."""
    assert sorted(theirs.column_names) == sorted(ours.column_names)
    wanted = canonical_rows(ours, with_meta=True)
    assert canonical_rows(like(theirs, ours.schema), with_meta=True) == wanted


def assert_hudi_reads_the_same(hudi: Hudi, table: Table, *, past: bool = False) -> pa.Table:
    """Compare the latest snapshot and return it; with `past` also compare each instant and each range between two."""
    now = table.scan().to_arrow()
    assert_same(now, hudi.read(table.location))
    if past:
        commits = [instant for instant, _ in table.commits()]
        for instant in commits:
            shown = hudi.read_as_of(table.location, instant.requested)
            assert_same(table.scan(as_of=instant.requested).to_arrow(), shown)
        for before, after in pairwise(instant.completion for instant in commits):
            changed = hudi.read_incremental(table.location, before, after)
            assert_same(table.incremental(before, after).to_arrow(), changed)
    return now
