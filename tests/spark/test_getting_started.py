"""The code blocks of docs/getting-started/library.md run in their order, as a reader would paste them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lakehouse import load_catalog

PAGE = Path(__file__).parents[2] / "docs" / "getting-started" / "library.md"


@pytest.mark.spark
def test_code_blocks_of_getting_started_run_in_order(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    first, merge_on_read, concurrency, services, with_spark, by_name = blocks
    printed: list[Any] = []
    names: dict[str, Any] = {"print": printed.append}

    def run(block: str) -> None:
        exec(compile(block.replace("/tmp/tour", str(tmp_path)), PAGE.name, "exec"), names)

    run(first)
    rows = printed[0]
    assert dict(zip(rows["order_id"], rows["fare"], strict=True)) == {"a": 10.0, "b": 20.0, "c": 30.0}
    assert printed[1:] == [1, 2]
    run(merge_on_read)
    assert printed[-4][0] == {"rider_id": "r1", "name": "Ada", "trips": 7}
    assert printed[-3][0] == {"rider_id": "r1", "trips": None}
    assert sum(partition.log_files for partition in printed[-1]) == 0
    assert names["riders"].scan(where="trips >= 1").count() == 2
    run(concurrency)
    assert printed[-1] == [{"name": "Ada", "trips": 7}], "the restore undoes the backfill"
    run(services)
    assert printed[-1] == (), "no partition is old enough to expire"
    run(with_spark)
    assert names["spark"].version == spark.version
    assert names["table"].scan(where="day = '2026-01-03'").count() == 1000
    assert 300 < printed[-1] < 700, "about half of the fares are above 0.5"
    assert names["stream"].isStreaming
    assert names["stream"].columns == ["order_id", "fare"]
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    with load_catalog() as catalog:
        catalog.register_table("sales.orders", str(tmp_path / "orders"))
    run(by_name)
    assert printed[-1] == 1002
