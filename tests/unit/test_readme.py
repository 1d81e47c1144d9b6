"""README says what is so: its options table is the declared one, its tour runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa

from lakehouse.spec.options.declarations import options_markdown
from lakehouse.spec.table import parse_spec

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_options_table_is_the_declared_one() -> None:
    table = re.search(r"<!-- options:.*?-->\n(.*?)\n<!-- /options -->", README, re.DOTALL)
    assert table is not None
    assert table[1] == options_markdown()


def test_the_first_part_of_the_tour_runs_and_says_what_readme_says(tmp_path: Path) -> None:
    code = _blocks("python")[0].replace("/tmp/tour", str(tmp_path))
    assert "print(" in code
    told: list[object] = []
    exec(compile(code, "README.md", "exec"), {"print": told.append})
    rows = told[0]
    assert isinstance(rows, dict)
    assert dict(zip(rows["order_id"], rows["fare"], strict=True)) == {"a": 11.0, "b": 20.0, "c": 30.0, "d": 40.0}
    assert told[1] == 3
    assert isinstance(told[2], pa.Table)
    assert sorted(told[2].column("order_id").to_pylist()) == ["a", "d"]
    assert told[3:] == [1, ("2026-01-01",)]
    shutil.rmtree(tmp_path / "orders")


def test_the_example_spec_parses() -> None:
    spec = parse_spec(_blocks("yaml")[0], source="README.md")
    assert spec.table == "ride_trips"
    assert spec.ingest is not None
    assert spec.ingest.is_by_interval
