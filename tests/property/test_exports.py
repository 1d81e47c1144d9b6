"""Random histories of writes and services, exported at random times: both views equal the table after each export.

The seeds decide the histories. A failed seed can be run alone by its parameter.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.errors import UserError
from tests.support.tables import make_env
from tests.support.views import FORMATS, check_view, export

SEEDS = range(10 * int(os.environ.get("LAKEHOUSE_EXAMPLES", "1")))
STEPS = 14
DAYS = ("2026-01-01", "2026-01-02", "a b#%/ü", "")


def batch(draw: random.Random, columns: int) -> pa.Table:
    """Return rows with some of few keys; `columns` is the number of columns that were added so far."""
    ids = draw.sample(range(12), draw.randint(1, 5))
    rows: dict[str, Any] = {
        "id": pa.array(ids, pa.int64()),
        "day": pa.array([DAYS[number % 3] for number in ids]),
        "amount": pa.array([draw.choice([None, draw.random()]) for _ in ids], pa.float64()),
    }
    rows |= {f"c{n}": pa.array([draw.randint(0, 9) for _ in ids], pa.int32()) for n in range(columns)}
    return pa.table(rows)


class History:
    """A table with a random history."""

    def __init__(self, seed: int, location: str) -> None:
        self.draw = random.Random(seed)
        draw = self.draw
        self.columns = 0
        self.partitioned = draw.random() < 0.7
        options = {
            "hoodie.write.table.version": draw.choice(["9", "9", "8"]),
            "hoodie.datasource.write.hive_style_partitioning": draw.choice(["true", "false"]),
            "hoodie.datasource.write.partitionpath.urlencode": "true",
            "hoodie.index.type": draw.choice(["SIMPLE", "BUCKET"]),
            "hoodie.bucket.index.num.buckets": "2",
            "hoodie.parquet.small.file.limit": draw.choice(["0", "104857600"]),
            "hoodie.clean.commits.retained": "1",
            "hoodie.compact.inline.max.delta.commits": "1",
            "hoodie.keep.min.commits": "4",
            "hoodie.keep.max.commits": "5",
        }
        self.table = Table.create(
            location,
            name="events",
            record_key=["id"],
            partition_by=["day"] if self.partitioned else [],
            table_type=draw.choice(["COPY_ON_WRITE", "COPY_ON_WRITE", "MERGE_ON_READ"]),
            options=options,
            env=make_env(location),
        )
        self.table.upsert(batch(draw, 0))

    def step(self) -> str:
        """Change the table in a random way, and return the name of the change."""
        verbs = [self.upsert, self.upsert, self.upsert, self.delete, self.overwrite, self.add_column, self.serve]
        verb = self.draw.choice([*verbs, self.drop_partition, self.undo, self.restore])
        try:
            verb()
        except UserError as error:
            # The change is not possible in this state of the table, such as a restore across a clean.
            return f"{verb.__name__}: {error.message[:80]}"
        return verb.__name__

    def upsert(self) -> None:
        self.table.upsert(batch(self.draw, self.columns))

    def delete(self) -> None:
        self.table.delete(batch(self.draw, 0).select(["id", "day"]))

    def overwrite(self) -> None:
        whole = self.table.insert_overwrite_table if self.draw.random() < 0.3 else self.table.insert_overwrite
        whole(batch(self.draw, self.columns))

    def add_column(self) -> None:
        self.columns += 1
        self.upsert()

    def drop_partition(self) -> None:
        if self.partitioned and self.table.partitions():
            self.table.delete_partitions([self.draw.choice(self.table.partitions())])

    def serve(self) -> None:
        services = self.table.services
        name = self.draw.choice(["clustering", "clean", "archive", "compaction"])
        if name != "compaction" or self.table.config.is_merge_on_read:
            getattr(services, name).run(force=True)

    def undo(self) -> None:
        if self.table.commits():
            self.table.rollback(self.table.commits()[-1][0].requested)

    def restore(self) -> None:
        if self.table.commits():
            self.table.restore(self.draw.choice(self.table.commits())[0].requested)


@pytest.mark.parametrize("seed", SEEDS)
def test_views_equal_the_table_after_random_histories(seed: int, tmp_path: Path) -> None:
    history = History(seed, f"{tmp_path}/events")
    done = []
    for _ in range(STEPS):
        done.append(history.step())
        for name in FORMATS:
            if history.draw.random() < 0.6:
                export(history.table, name)
                check_view(history.table, name)
    if not history.table.commits():
        history.upsert()
    for name in FORMATS:
        export(history.table, name)
        check_view(history.table, name)
        assert type(export(history.table, name)).__name__ == "NothingToDo", done
