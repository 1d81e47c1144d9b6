"""Decode messages by their schemas, in Spark tasks; a subclass implements a format.

The values of a batch are decoded together, by schema. If that fails, the batch is halved until the bad messages are
found. Columns are matched by name: columns that the writer's schema lacks are null, and columns that only the writer's
schema contains are collected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.errors import LakehouseError
from lakehouse.platform.sources.kafka.schema_registry import BadMessageError
from lakehouse.platform.sources.unread_fields import UnreadFields
from lakehouse.spark.messages import DECODED, MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDecoder(ABC):
    """Decodes message values. It is sent to the workers.

    Attributes:
        messages: Yields batches of `MESSAGES`.
        target: The type of a record.
        rows: Record fields; the first field with a value contains the columns of the row. Empty if the record does.
    """

    messages: Any
    target: pa.StructType
    rows: tuple[str, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages with `record`, a `problem` if it cannot be decoded, and the `unread` fields."""
        schema = pa.schema([*MESSAGES, pa.field("record", self.target), *DECODED])
        unread = self._no_fields()
        for batch in self.messages(batches):
            records, problems = self._decoded(batch.column("value"), unread)
            text = None
            if len(batch) == 1 and batch.column("is_end")[0].as_py():
                text, unread = unread.to_json(), self._no_fields()
            texts = pa.repeat(pa.scalar(text, pa.string()), len(batch))
            yield pa.RecordBatch.from_arrays([*batch.columns, records, problems, texts], schema=schema)
        text = unread.to_json()
        if text is not None:
            yield pa.RecordBatch.from_pylist([{"is_end": True, "unread": text}], schema=schema)

    def _no_fields(self) -> UnreadFields:
        return UnreadFields(self.target.field(self.rows[0]).type if self.rows else self.target, infers=False)

    def _decoded(self, values: pa.Array, unread: UnreadFields) -> tuple[pa.Array, pa.Array]:
        """Return the values' records and problems; both are null for a null value."""
        present = np.flatnonzero(np.asarray(values.is_valid()))
        given = values.take(pa.array(present))
        ids = np.asarray(self._schema_ids(given))
        positions, pieces = [], []
        problems = np.full(len(values), None, object)
        for schema_id in np.unique(ids).tolist():
            group = np.flatnonzero(ids == schema_id)
            for part, records, problem in self._decoded_group(given, group, schema_id, unread):
                if records is None:
                    problems[present[part]] = problem
                else:
                    positions.append(present[part])
                    pieces.append(records)
        order = np.full(len(values), -1, np.int64)
        if positions:
            order[np.concatenate(positions)] = np.arange(sum(map(len, positions)))
        stored = pa.concat_arrays(pieces) if pieces else pa.nulls(0, self.target)
        return stored.take(pa.array(order, mask=order < 0)), pa.array(problems, pa.string())

    def _decoded_group(
        self, values: pa.Array, group: np.ndarray[Any, Any], schema_id: int, unread: UnreadFields
    ) -> Iterator[tuple[Any, pa.Array | None, str]]:
        """Yield parts of a group with their records, or with the problem of a single message."""
        try:
            schema = self._schema(schema_id)
        except BadMessageError as error:
            yield group, None, str(error)
            return
        waiting = [group]
        while waiting:
            part = waiting.pop()
            try:
                yield part, self._records(values.take(pa.array(part)), schema, unread), ""
            except (LakehouseError, BadMessageError, pa.ArrowException, ValueError, IndexError, OverflowError) as error:
                if len(part) == 1:
                    yield part, None, f"does not decode: {error}"[:300]
                else:
                    middle = len(part) // 2
                    waiting += [part[middle:], part[:middle]]

    @abstractmethod
    def _schema_ids(self, values: pa.Array) -> Any:
        """Return the schema id of each value; negative if a value has no schema id."""

    @abstractmethod
    def _schema(self, schema_id: int) -> Any:
        """Return a schema; raise BadMessageError if there is none."""

    @abstractmethod
    def _records(self, values: pa.Array, schema: Any, unread: UnreadFields) -> pa.Array:
        """Return the records of values; raise an error if one of them is bad."""
