"""Replace personal data by keyed hashes, for the transform of an ingestion.

A hash without a key does not hide an email address or a phone number: a reader can hash all numbers and compare. The
key is in the environment variable MASKING_KEY of the Spark driver. Equal values have equal hashes, so tables can be
joined by them. The key travels to the tasks in their code, and is not in the query plan.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

#: Columns that are hashed, and columns that are dropped.
HASHED = ("email", "phone")
DROPPED = ("name", "street")


def mask(views: Mapping[str, DataFrame]) -> DataFrame:
    """Return the records of a run with hashes of personal data."""
    key = os.environ.get("MASKING_KEY", "").encode()
    if not key:
        raise ValueError("the environment variable MASKING_KEY is not set")
    records = views["batch"].drop(*DROPPED)
    return records.mapInArrow(partial(_masked, key), records.schema)


def _masked(key: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for name in HASHED:
            values = batch.column(name).dictionary_encode()
            hashes = pa.array([_hash(key, value) for value in values.dictionary.to_pylist()], pa.string())
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(name), hashes.take(values.indices))
        yield batch


def _hash(key: bytes, value: str) -> str:
    return hmac.new(key, value.strip().lower().encode(), hashlib.sha256).hexdigest()
