"""Test that the `.indexing` instants of Apache Hudi are decoded, and encoded to equal content."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator

import fastavro

from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.format.timeline import schemas
from lakehouse.core.format.timeline.indexing import (
    decode_index_metadata,
    decode_index_plan,
    encode_index_metadata,
    encode_index_plan,
)
from lakehouse.model.indexing import IndexedPartition
from lakehouse.model.instant import Action, Instant
from tests.support.shared import fixtures

TABLE = "hudi_metadata/tables/cow_all_indexes.zip"
BUILT = ["secondary_index_name_idx", "expr_index_idx_hour", "expr_index_idx_upper"]


def indexings() -> Iterator[tuple[Instant, bytes]]:
    """Yield the `.indexing` files of the table that have content, by name."""
    with zipfile.ZipFile(fixtures(TABLE)) as archive:
        for name in sorted(archive.namelist()):
            instant = parse_instant(name.rpartition("/")[2])
            if instant is not None and instant.action is Action.INDEXING and (data := archive.read(name)):
                yield instant, data


def record_of(data: bytes) -> object:
    return next(iter(fastavro.reader(io.BytesIO(data))))


def test_index_plans_and_metadata_of_hudi_are_decoded_and_encoded_to_equal_records() -> None:
    plans, done = [], []
    for instant, data in indexings():
        if instant.is_completed:
            metadata = decode_index_metadata(data)
            assert record_of(encode_index_metadata(metadata)) == record_of(data)
            done += metadata.partitions
        else:
            plan = decode_index_plan(data)
            assert record_of(encode_index_plan(plan)) == record_of(data)
            plans += plan.partitions
    assert plans == done == [IndexedPartition(partition=name, up_to="20261122124728223") for name in BUILT]


def test_indexing_schemas_equal_those_in_hudis_files() -> None:
    ours = {schema["name"]: schema for schema in (schemas.INDEX_PLAN, schemas.INDEX_METADATA)}
    seen = set()
    for _, data in indexings():
        embedded = json.loads(fastavro.reader(io.BytesIO(data)).metadata["avro.schema"])
        assert embedded == ours[embedded["name"]]
        seen.add(embedded["name"])
    assert seen == set(ours)
