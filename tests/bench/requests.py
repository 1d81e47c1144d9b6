"""Storage requests of each commit and each read, as an object store would bill them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.counting import VERBS, CountingStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Instant
from tests.bench.data import KEY, ORDERING, PARTITION, ZONES, orders
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import CODEC, Setting

_MAX_ROWS = 200_000
#: The allowed number of LIST requests besides one for each touched partition.
LIST_CONSTANT = 10


def run(setting: Setting) -> list[Comparison]:
    """Print the requests of each operation on a table of 20 partitions; files are small, so each takes one GET."""
    rows = min(setting.rows, _MAX_ROWS)
    storage = CountingStorage(open_storage(setting.fresh("requests")))
    lines = [("what", "touched partitions", "files written", *VERBS)]

    def count(what: str, partitions: int, act: Callable[[], object]) -> object:
        storage.reset()
        outcome = act()
        counts = storage.counts()
        files = str(len(outcome.metadata.stats)) if isinstance(outcome, Committed) else "-"
        lines.append((what, str(partitions), files, *(str(counts[verb]) for verb in VERBS)))
        if isinstance(outcome, Committed):
            assert counts["HEAD"] == 0, f"{what}: {counts}"
            assert counts["LIST"] <= partitions + LIST_CONSTANT, f"{what}: {counts}"
        return outcome

    _journey(storage, rows, count)
    show_lines(lines)
    return []


def _journey(storage: CountingStorage, rows: int, count: Callable[[str, int, Callable[[], object]], object]) -> None:
    table = Table.create(
        storage.root,
        name="orders",
        record_key=[KEY],
        partition_by=[PARTITION],
        ordering=ORDERING,
        options={"hoodie.parquet.compression.codec": CODEC},
        env=Env(storage=storage),
    )
    everything, some, one = np.arange(rows), np.arange(0, rows, 100), np.arange(1)
    zone = orders(one).column(PARTITION)[0].as_py()
    first = count("bulk_insert", ZONES, lambda: table.bulk_insert(orders(everything)))
    count("upsert of 1%", ZONES, lambda: table.upsert(orders(some, version=1)))
    last = count("upsert of one row", 1, lambda: table.upsert(orders(one, version=2)))
    count("delete of one row", 1, lambda: table.delete(orders(one).select([KEY, PARTITION])))
    count("insert of one row", 1, lambda: table.insert(orders(one)))
    count("insert_overwrite of a partition", 1, lambda: table.insert_overwrite(orders(one, version=3)))
    count("delete_partitions", ZONES, lambda: table.delete_partitions([zone]))
    count("snapshot read", ZONES, lambda: table.scan().count())
    count("read of one partition", 1, lambda: table.scan(where=f"{PARTITION} = 'zone-01'").count())
    begin = _instant(last).completion
    count("incremental read", 1, lambda: table.incremental(begin=begin).count())
    count("snapshot read as of the first commit", ZONES, lambda: table.scan(as_of=_instant(first).requested).count())


def _instant(outcome: object) -> Instant:
    assert isinstance(outcome, Committed)
    return outcome.instant
