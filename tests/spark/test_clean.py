"""Cleans on Spark: executors delete the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.services import clean
from lakehouse.core.operations.services.clean import Cleaned
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from tests.support.tables import Shape, base_files, batch, data_rows, make_table, row

pytestmark = pytest.mark.spark


def test_executors_delete_the_files_of_a_clean_plan(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_table(Shape(rows_per_file=1_000), env=Env(storage=open_storage(str(tmp_path / "t"))))
    for number in range(4):
        made.upsert(batch([row(f"k{p}", p=p, ts=number, v=f"v{number}") for p in "abcdef"]))
    monkeypatch.setattr(clean, "_BATCH", 2)
    table = Table.open(made.location, options={"hoodie.clean.commits.retained": "1"})
    outcome = table.services.clean.run(spark=spark)
    assert isinstance(outcome, Cleaned) and outcome.files == 12
    assert len(base_files(table.refresh().env.storage)) == 12
    assert {found["v"] for found in data_rows(table, ["v"])} == {"v3"}
