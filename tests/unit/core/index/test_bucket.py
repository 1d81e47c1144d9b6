"""The simple bucket index: Java's hashes, buckets of keys, file ids of buckets."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.core.index.bucket import bucket_file_id, bucket_ids, bucket_of
from lakehouse.core.index.java_hash import list_hashes, string_hashes
from lakehouse.core.operations.create.declare import TableDeclaration, declared_properties
from lakehouse.errors import UserError

UUID = "6e1d5cc4-c487-487d-abbe-fe9b30b1c0cc"


def buckets(keys: list[str], *key_fields: str, hash_fields: tuple[str, ...] = (), count: int = 1_000_000) -> list[int]:
    return bucket_ids(pa.array(keys), key_fields=key_fields, hash_fields=hash_fields, buckets=count).tolist()


def test_string_hashes_are_those_of_java() -> None:
    known = {"": 0, "abc": 96354, "Hello, World!": 1498789909, "polygenelubricants": -2147483648, "a😀": 1773220}
    known["a😀"] = (ord("a") * 31 + 0xD83D) * 31 + 0xDE00
    assert string_hashes(pa.array(list(known))).tolist() == list(known.values())
    assert string_hashes(pa.array(["abc", None])).tolist() == [96354, 0]


def test_a_slice_of_an_array_is_hashed_alone() -> None:
    strings = pa.array(["x", "abc", "ż", "yy"])
    assert string_hashes(strings.slice(1, 1)).tolist() == [96354]
    assert string_hashes(strings.slice(2)).tolist() == [ord("ż"), 121 * 31 + 121]
    assert string_hashes(pa.chunked_array([["abc"], [], ["x"]])).tolist() == [96354, 120]
    assert string_hashes(pa.array([], pa.string())).tolist() == []
    assert string_hashes(pa.array(["", ""])).tolist() == [0, 0]


def test_list_hashes_are_those_of_java() -> None:
    abc = string_hashes(pa.array(["abc"]))
    assert list_hashes([abc], 1).tolist() == [96385]
    assert list_hashes([abc, abc], 1).tolist() == [(31 * 96385 + 96354)]
    assert list_hashes([], 2).tolist() == [1, 1]


def test_a_simple_key_is_hashed_whole_even_with_a_colon_inside() -> None:
    assert buckets(["abc", "a:b"], "id") == [96385, 31 + (97 * 31 + 58) * 31 + 98]


def test_a_complex_key_is_hashed_by_the_values_of_its_hash_fields() -> None:
    assert buckets(["id:abc,name:x"], "id", "name", hash_fields=("id",)) == [96385]
    assert buckets(["id:abc,name:x"], "id", "name") == [(31 * 96385 + 120) % 1_000_000]
    # The order of the key decides, not that of the setting.
    assert buckets(["id:abc,name:x"], "id", "name", hash_fields=("name", "id")) == buckets(
        ["id:abc,name:x"], "id", "name"
    )


def test_null_and_empty_values_of_a_complex_key_hash_to_zero() -> None:
    assert buckets(["id:__null__,name:x", "id:__empty__,name:x"], "id", "name", hash_fields=("id",)) == [31, 31]


def test_separators_and_line_ends_inside_values_belong_to_the_value() -> None:
    assert buckets(["id:abc,name:a,b:c\n"], "id", "name", hash_fields=("id",)) == [96385]
    assert buckets(["id:a,b:c\n,name:abc"], "id", "name", hash_fields=("name",)) == [96385]


def test_negative_hashes_give_buckets_from_zero() -> None:
    keys = ["polygenelubricants", "abc", "zzzzzzzzzz"]
    assert all(0 <= bucket < 7 for bucket in buckets(keys, "id", count=7))
    assert buckets(["polygenelubricants"], "id") == [31]


def test_settings_and_keys_that_cannot_work_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"hash field 'nam' is no record key field\. Did you mean 'name'"):
        buckets(["id:1,name:x"], "id", "name", hash_fields=("nam",))
    with pytest.raises(UserError, match="needs 1 to 99999999 buckets, not 0"):
        buckets(["a"], "id", count=0)
    with pytest.raises(UserError, match=r"record key 'abc' has not the form id:\.\.\.,name:\.\.\."):
        buckets(["id:1,name:x", "abc"], "id", "name")


def test_a_file_id_begins_with_its_bucket() -> None:
    assert bucket_file_id(3, UUID) == "00000003-c487-487d-abbe-fe9b30b1c0cc-0"
    assert bucket_of("00000003-c487-487d-abbe-fe9b30b1c0cc-0") == 3
    assert bucket_of("00000012-0000-0000-0000-000000000000-0") == 12


@pytest.mark.parametrize("file_id", ["6e1d5cc4-c487-487d-abbe-fe9b30b1c0cc-0", "", "0000000-c487", "00000003"])
def test_a_file_id_without_bucket_is_refused_by_name(file_id: str) -> None:
    with pytest.raises(UserError, match=f"file id '{file_id}' has no bucket number"):
        bucket_of(file_id)


@pytest.mark.parametrize(("bucket", "uuid"), [(-1, UUID), (100_000_000, UUID), (1, "6e1d5cc4")])
def test_a_bucket_that_makes_no_file_id_is_refused(bucket: int, uuid: str) -> None:
    with pytest.raises(UserError, match="make no file id"):
        bucket_file_id(bucket, uuid)


def test_a_bucketed_table_tells_hudis_services_its_record_key() -> None:
    options = {"hoodie.index.type": "bucket", "hoodie.bucket.index.num.buckets": "4"}
    bucketed = declared_properties(TableDeclaration(name="t", record_key=("a", "b"), options=options))
    assert bucketed["hoodie.datasource.write.recordkey.field"] == "a,b"
    assert bucketed["hoodie.table.recordkey.fields"] == "a,b"
    plain = declared_properties(TableDeclaration(name="t", record_key=("a", "b")))
    assert "hoodie.datasource.write.recordkey.field" not in plain
