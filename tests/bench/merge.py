"""MERGE of 1 % of the rows against `upsert` of the same rows, and against MERGE of deltalake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from lakehouse.core.table.table import Table
from tests.bench.data import orders
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import Setting, create

#: The rows of a statement: nine in ten are stored.
SHARE, NEW = 100, 10
CONDITION = "source.order_id = target.order_id"


def run(setting: Setting) -> list[Comparison]:
    """Measure each kind of statement on equal tables, side by side."""
    tables = {name: _table(setting, name) for name in ("upsert", "merge", "conditions")}
    delta = _delta(setting)

    def upsert(number: int) -> object:
        return tables["upsert"].upsert(_rows(setting, number))

    def merge(number: int) -> object:
        return _all(tables["merge"].merge(_rows(setting, number), CONDITION)).execute()

    def conditions(number: int) -> object:
        builder = tables["conditions"].merge(_rows(setting, number), CONDITION)
        return _all(builder, "source.fare <> target.fare").execute()

    def of_delta(number: int) -> object:
        builder = delta.merge(_rows(setting, number), CONDITION, source_alias="source", target_alias="target")
        return _all(builder).execute()

    sides = [
        Side(name="upsert", run=upsert),
        Side(name="merge", run=merge),
        Side(name="merge with conditions", run=conditions),
        Side(name="deltalake", run=of_delta),
    ]
    samples = interleave(sides, setting.rounds)
    what = f"{setting.rows // SHARE:,} rows into {setting.rows:,}"
    return [
        compare(what, samples, "merge", "upsert", 1.1),
        compare(what, samples, "merge", "deltalake", 1.0),
        compare(f"{what}, conditions", samples, "merge with conditions", "upsert", 1.1),
        compare(f"{what}, conditions", samples, "merge with conditions", "deltalake", 1.0),
    ]


def _all(builder: Any, predicate: str | None = None) -> Any:
    return builder.when_matched_update_all(predicate).when_not_matched_insert_all()


def _rows(setting: Setting, number: int) -> pa.Table:
    count = setting.rows // SHARE
    rng = np.random.default_rng(number)
    stored = rng.choice(setting.rows, count - count // NEW, replace=False)
    new = setting.rows * (number + 2) + np.arange(count // NEW)
    return orders(np.concatenate([stored, new]), version=number + 1)


def _table(setting: Setting, name: str) -> Table:
    table = create(setting.fresh(f"merge-{name}"), partitioned=False)
    table.bulk_insert(orders(np.arange(setting.rows)))
    return table


def _delta(setting: Setting) -> DeltaTable:
    place = Path(setting.fresh("merge-delta"))
    write_deltalake(str(place), orders(np.arange(setting.rows)))
    return DeltaTable(str(place))
