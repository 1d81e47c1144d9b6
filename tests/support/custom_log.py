"""A source outside of the package, as a deployment would write it: records of a log in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from lakehouse.errors import CorruptTableError, UserError
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.source import Batch, Interval, KnownColumns, SourcePlan
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from tests.support.ingested import BAD

NAME = "tests.support.custom_log:LogRecords"
#: The records of the logs, by the option `log`.
LOGS: dict[str, list[tuple[datetime, str]]] = {}


@dataclass(frozen=True, kw_only=True)
class LogPlan(SourcePlan):
    """The offsets of the records to read."""

    offsets: tuple[int, ...]


class LogRecords:
    """Records of a log; the checkpoint is the next offset."""

    def __init__(self, context: SourceContext) -> None:
        settings: Any = ingest_of(context.spec).source
        self.log, self.by_interval = settings.options["log"], settings.by_interval

    @staticmethod
    def check(options: Mapping[str, str], environ: Mapping[str, str]) -> None:
        """Refuse a log that does not exist."""
        if options.get("log") not in LOGS:
            raise UserError(f"options: log {options.get('log')!r} does not exist")

    def plan(self, checkpoint: str | None, interval: Interval | None, *, full_refresh: bool) -> LogPlan:
        """Choose offsets."""
        if self.by_interval and interval is None:
            raise UserError(f"log {self.log} is read by data interval, and this run has none")
        if checkpoint is not None and not checkpoint.isdigit():
            raise CorruptTableError(f"the ingest checkpoint {checkpoint!r} is not an offset")
        first = 0 if checkpoint is None or full_refresh or self.by_interval else int(checkpoint)
        offsets = tuple(
            offset
            for offset, (moment, _) in enumerate(LOGS[self.log])
            if offset >= first and (interval is None or not self.by_interval or interval[0] <= moment < interval[1])
        )
        return LogPlan(
            units=len(offsets),
            reason=f"{len(offsets)} of {len(LOGS[self.log])} records",
            fingerprint=f"{offsets[0]}-{offsets[-1]}" if offsets else "",
            checkpoint=str(offsets[-1] + 1) if offsets and not self.by_interval else None,
            metadata={"shop.offsets": json.dumps(offsets)},
            offsets=offsets,
        )

    @contextmanager
    def read(self, plan: LogPlan, *, known: KnownColumns, dead_letters: DeadLetterBox) -> Iterator[Batch | None]:
        """Yield the rows of the planned records; bad ones become dead letters."""
        texts = [LOGS[self.log][offset][1] for offset in plan.offsets]
        bad = [text for text in texts if text.startswith(BAD)]
        for number, letter in enumerate(bad):
            dead_letters.storage.put(
                f"{dead_letters.path_of(dead_letters.attempt)}/part-{number}.json", letter.encode()
            )
        schema: Any = pa.schema({"id": pa.string(), "p": pa.string(), "ts": pa.int64()})
        rows: Any = pa.Table.from_pylist([{"id": text, "p": "p", "ts": 1} for text in texts if text not in bad], schema)
        yield Batch(frame=rows, rows=rows.num_rows, bad_records=len(bad), schema=schema)

    def verify(self, plan: LogPlan) -> None:
        """Accept every plan: records of a log do not change."""
