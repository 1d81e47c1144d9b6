"""The Spark part of README's tour runs after the first parts, as a reader would paste it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lakehouse import load_catalog

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.spark
def test_all_parts_of_the_tour_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    first, merge_on_read, many_writers, kept_small, second, by_name = blocks
    told: list[Any] = []
    names: dict[str, Any] = {"print": told.append}
    exec(compile(first.replace("/tmp/tour", str(tmp_path)), "README.md", "exec"), names)
    exec(compile(merge_on_read.replace("/tmp/tour", str(tmp_path)), "README.md", "exec"), names)
    assert told[-4][0] == {"rider_id": "r1", "name": "Ada", "trips": 7}
    assert told[-3][0] == {"rider_id": "r1", "trips": None}
    assert sum(partition["log files"] for partition in told[-1]) == 0
    assert names["riders"].scan(where="trips >= 1").count() == 2
    exec(compile(many_writers, "README.md", "exec"), names)
    assert told[-1] == [{"name": "Ada", "trips": 7}], "the backfill is undone"
    exec(compile(kept_small.replace("/tmp/tour", str(tmp_path)), "README.md", "exec"), names)
    assert told[-1] == (), "nothing is old enough to expire"
    exec(compile(second, "README.md", "exec"), names)
    assert names["spark"].version == spark.version
    assert names["table"].scan(where="day = '2026-01-03'").count() == 1000
    assert 300 < told[-1] < 700, "about half of the fares are above 0.5"
    assert names["stream"].isStreaming
    assert names["stream"].columns == ["order_id", "fare"]
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    with load_catalog() as catalog:
        catalog.register_table("sales.orders", str(tmp_path / "orders"))
    exec(compile(by_name, "README.md", "exec"), names)
    assert told[-1] == 1002
