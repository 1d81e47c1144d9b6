"""Bucket numbers of record keys, and file ids of buckets, for the bucket index (DATA-7.3).

    record key --> values of the hash fields --> List.hashCode & 0x7fffffff --> modulo buckets --> file id 0000000b-...

There is exactly one file group per partition and bucket, so no lookup is needed. A partition's number of buckets and
the table's hash fields must not change.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.java_hash import list_hashes, string_hashes
from lakehouse.errors import UserError, nearest
from lakehouse.spec.table.bucket_rules import MAX_BUCKETS

_UUID = re.compile(r"[0-9a-fA-F]{8}((?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})")
_FILE_ID = re.compile(r"(\d{8})-[0-9a-fA-F-]+")
#: The uuid of file groups whose id must depend only on the bucket.
NO_UUID = "00000000-0000-0000-0000-000000000000"


def bucket_ids(
    keys: pa.Array | pa.ChunkedArray,
    *,
    key_fields: tuple[str, ...],
    hash_fields: tuple[str, ...],
    buckets: int | npt.NDArray[np.int32],
) -> npt.NDArray[np.int32]:
    """Return the bucket of each record key as int32, from 0 to `buckets - 1`.

    With one key field the whole key is hashed. With several key fields, keys have the form `f1:v1,f2:v2`, and the
    values of the hash fields are hashed in the order of the key. `__null__` is hashed as null and `__empty__` as "".
    Values may contain `,` and `:`.

    If a key with one field is stored as `f:v`, the whole string is hashed. Implementations differ in this, so do not
    combine the bucket index with such keys.

    Args:
        keys: Record keys.
        key_fields: The record key fields of the table.
        hash_fields: The key fields that are hashed; all of them if empty.
        buckets: The number of buckets, or one number per key.

    Raises:
        UserError: `hash_fields` contains a field that is not a key field, or a key does not have the form above.
    """
    if isinstance(buckets, int) and not 0 < buckets <= MAX_BUCKETS:
        raise UserError(f"a bucket index needs 1 to {MAX_BUCKETS} buckets, not {buckets}", buckets=buckets)
    for name in hash_fields:
        if name not in key_fields:
            raise UserError(
                f"bucket hash field {name!r} is not a record key field.{nearest(name, key_fields)} "
                f"Record key fields: {', '.join(key_fields)}",
                field=name,
            )
    chunks = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    parts = [_hashes(chunk.cast(pa.string()), key_fields, hash_fields) for chunk in chunks]
    hashes = np.concatenate(parts) if parts else np.empty(0, np.int32)
    return (hashes & np.int32(0x7FFFFFFF)) % np.asarray(buckets, np.int32)


def bucket_file_id(bucket: int, uuid: str) -> str:
    """Return the file id of a new group of `bucket`: `uuid` with the bucket number as its first eight characters."""
    match = _UUID.fullmatch(uuid)
    if match is None or not 0 <= bucket <= MAX_BUCKETS:
        raise UserError(f"bucket {bucket} and uuid {uuid!r} cannot form a file id", bucket=bucket, uuid=uuid)
    return f"{bucket:08d}{match[1]}-0"


def bucket_of(file_id: str) -> int:
    """Return the bucket that `file_id` belongs to. Raises UserError if the id does not begin with a bucket number."""
    match = _FILE_ID.fullmatch(file_id)
    if match is None:
        raise UserError(
            f"file id {file_id!r} does not begin with a bucket number; the table was not written with a bucket index",
            file_id=file_id,
        )
    return int(match[1])


def _hashes(keys: pa.Array, key_fields: tuple[str, ...], hash_fields: tuple[str, ...]) -> npt.NDArray[np.int32]:
    if len(key_fields) == 1:
        return list_hashes([string_hashes(keys)], len(keys))
    values = key_values(keys, key_fields)
    chosen = [index for index, name in enumerate(key_fields) if name in hash_fields or not hash_fields]
    return list_hashes([_value_hashes(values.field(index)) for index in chosen], len(keys))


def key_values(keys: pa.Array, key_fields: tuple[str, ...]) -> pa.StructArray:
    """Return the values in keys of the form `f1:v1,f2:v2`, as a struct with one field per key field."""
    groups = [f"{re.escape(name)}:(?P<v{index}>.*?)" for index, name in enumerate(key_fields)]
    values = pc.extract_regex(keys, f"(?s)^{','.join(groups)}$")
    if values.null_count:
        key = keys.filter(values.is_null())[0].as_py()
        form = ",".join(f"{name}:..." for name in key_fields)
        raise UserError(f"record key {key!r} does not have the form {form} that its key fields require", key=key)
    return values


def _value_hashes(values: pa.Array) -> npt.NDArray[np.int32]:
    """Return the hashes of values. The placeholders for null and the empty string hash to 0."""
    hashes = string_hashes(values)
    hashes[np.asarray(pc.is_in(values, value_set=pa.array(["__null__", "__empty__"])))] = 0
    return hashes
