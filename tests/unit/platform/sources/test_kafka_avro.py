"""Avro messages are decoded in whole batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakehouse.platform.sources.kafka.kafka_avro import AvroDecoder
from lakehouse.platform.sources.kafka.schema_registry import without_start
from lakehouse.platform.sources.unread_fields import UnreadFields
from tests.support.schema_registry import schema_registry


@pytest.mark.parametrize("count", [0, 1, 2, 7, 64])
def test_start_of_any_number_of_values_is_cut_off(count: int) -> None:
    values = pa.array([b"start" + bytes([number]) for number in range(count)], pa.binary())
    assert without_start(values, 5).to_pylist() == [bytes([number]) for number in range(count)]


@pytest.mark.parametrize("count", [63, 64])
def test_batch_of_any_number_of_messages_is_decoded_at_one_go(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    decode = AvroDecoder._records

    def counted(decoder: AvroDecoder, values: pa.Array, schema: Any, unread: UnreadFields) -> pa.Array:
        calls.append(len(values))
        return decode(decoder, values, schema, unread)

    monkeypatch.setattr(AvroDecoder, "_records", counted)
    kind = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
    with schema_registry() as registry:
        values = pa.array([registry.encoded(kind, {"id": number}) for number in range(count)], pa.binary())
        target = pa.struct([("id", pa.int64())])
        decoder = AvroDecoder(messages=lambda batches: batches, registry={"url": registry.url}, target=target, rows=())
        records, problems = decoder._decoded(values, UnreadFields(target, infers=False))
    assert records.field("id").to_pylist() == list(range(count))
    assert problems.null_count == count
    assert calls == [count]
