"""Small files that a look at a table counts, and the problem that the shipped rules find in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.system.clock import SystemClock
from lakehouse.core.table.table import Table
from lakehouse.platform.alarms.evaluate import evaluate
from lakehouse.platform.alarms.facts import TableFacts
from lakehouse.platform.alarms.parse import load_rules
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.services.look import LookRequest, look
from lakehouse.spec.contracts.fleet import TableNumbers

BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "12"}
#: An insert begins new files instead of filling small ones.
INSERTS = {"hoodie.parquet.small.file.limit": "0"}


def numbers_after_writes(place: Path, options: dict[str, Any], writes: int) -> TableNumbers:
    """Create a table, write to it, and return the numbers of a look at it."""
    # The limit of small files holds for these writes only, not for the look.
    stores = options is not INSERTS
    table = Table.create(str(place / "t"), name="t", record_key=["id"], options=options, store_options=stores)
    for number in range(writes):
        table.insert(pa.table({"id": [f"{number}-{row}" for row in range(40)]}))
    with Catalog(Database(f"sqlite:///{place}/catalog.db"), SystemClock()) as catalog:
        catalog.register_table("a.t", str(place / "t"))
        (entry,) = catalog.registered().values()
        seen = look(entry, catalog.policies(), LookRequest(services=[], now_ms=catalog.clock.now_ms()))
    assert seen.numbers is not None, seen.error
    return seen.numbers


def problems(numbers: TableNumbers) -> list[str]:
    """Return the rules that find a problem in numbers."""
    facts = TableFacts(table="a.t", now_ms=0, numbers=numbers)
    return [problem.rule for problem in evaluate(load_rules({}), facts)]


@pytest.mark.parametrize(("writes", "found"), [(12, ["small_files"]), (3, [])])
def test_table_of_only_small_files_needs_attention_from_ten_files_on(
    tmp_path: Path, writes: int, found: list[str]
) -> None:
    numbers = numbers_after_writes(tmp_path, INSERTS, writes)
    assert numbers.small_files == numbers.file_groups == writes
    assert problems(numbers) == found


def test_small_files_of_a_bucket_index_are_no_problem(tmp_path: Path) -> None:
    numbers = numbers_after_writes(tmp_path, BUCKETS, 1)
    assert numbers.file_groups == 12
    assert numbers.small_files is None
    assert problems(numbers) == []
