"""The cache of values that are derived from a schema."""

from __future__ import annotations

import pyarrow as pa

from lakehouse.core.format.schema_cache import cached_by_columns


def test_cache_ignores_the_metadata_of_a_schema() -> None:
    calls: list[tuple[pa.Schema | None, int]] = []

    @cached_by_columns(maxsize=4)
    def names(schema: pa.Schema | None, more: int) -> list[str]:
        calls.append((schema, more))
        return [] if schema is None else schema.names

    plain = pa.schema([pa.field("id", pa.int64())])
    assert names(plain, 1) == names(plain.with_metadata({"pandas": "{}"}), 1) == ["id"]
    assert names(plain, 2) == ["id"]
    assert names(None, 1) == []
    assert calls == [(plain, 1), (plain, 2), (None, 1)]
    assert all(schema is None or schema.metadata is None for schema, _ in calls)
