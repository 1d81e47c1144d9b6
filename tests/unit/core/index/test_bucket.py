"""Bucket index: Java hashes, bucket numbers of keys, and file ids of buckets."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.core.format.java_hash import list_hashes, string_hashes
from lakehouse.core.index.hash.bucket import bucket_file_id, bucket_ids, bucket_of
from lakehouse.core.operations.create.declare import TableDeclaration, declared_properties
from lakehouse.errors import UserError

UUID = "6e1d5cc4-c487-487d-abbe-fe9b30b1c0cc"


def buckets(keys: list[str], *key_fields: str, hash_fields: tuple[str, ...] = (), count: int = 1_000_000) -> list[int]:
    return bucket_ids(pa.array(keys), key_fields=key_fields, hash_fields=hash_fields, buckets=count).tolist()


def test_string_hashes_equal_those_of_java() -> None:
    known = {"": 0, "abc": 96354, "Hello, World!": 1498789909, "polygenelubricants": -2147483648, "a😀": 1773220}
    known["a😀"] = (ord("a") * 31 + 0xD83D) * 31 + 0xDE00
    assert string_hashes(pa.array(list(known))).tolist() == list(known.values())
    assert string_hashes(pa.array(["abc", None])).tolist() == [96354, 0]


def test_string_hashes_of_a_sliced_array_use_only_the_slice() -> None:
    strings = pa.array(["x", "abc", "ż", "yy"])
    assert string_hashes(strings.slice(1, 1)).tolist() == [96354]
    assert string_hashes(strings.slice(2)).tolist() == [ord("ż"), 121 * 31 + 121]
    assert string_hashes(pa.chunked_array([["abc"], [], ["x"]])).tolist() == [96354, 120]
    assert string_hashes(pa.array([], pa.string())).tolist() == []
    assert string_hashes(pa.array(["", ""])).tolist() == [0, 0]


def test_list_hashes_equal_those_of_java() -> None:
    abc = string_hashes(pa.array(["abc"]))
    assert list_hashes([abc], 1).tolist() == [96385]
    assert list_hashes([abc, abc], 1).tolist() == [(31 * 96385 + 96354)]
    assert list_hashes([], 2).tolist() == [1, 1]


def test_bucket_ids_hash_a_simple_key_whole_even_with_a_colon_inside() -> None:
    assert buckets(["abc", "a:b"], "id") == [96385, 31 + (97 * 31 + 58) * 31 + 98]


def test_bucket_ids_hash_a_complex_key_by_the_values_of_its_hash_fields() -> None:
    assert buckets(["id:abc,name:x"], "id", "name", hash_fields=("id",)) == [96385]
    assert buckets(["id:abc,name:x"], "id", "name") == [(31 * 96385 + 120) % 1_000_000]
    # The order of the key fields decides, not the order in the option.
    assert buckets(["id:abc,name:x"], "id", "name", hash_fields=("name", "id")) == buckets(
        ["id:abc,name:x"], "id", "name"
    )


def test_bucket_ids_hash_null_and_empty_values_of_a_complex_key_to_zero() -> None:
    assert buckets(["id:__null__,name:x", "id:__empty__,name:x"], "id", "name", hash_fields=("id",)) == [31, 31]


def test_bucket_ids_keep_separators_and_line_ends_inside_values() -> None:
    assert buckets(["id:abc,name:a,b:c\n"], "id", "name", hash_fields=("id",)) == [96385]
    assert buckets(["id:a,b:c\n,name:abc"], "id", "name", hash_fields=("name",)) == [96385]


def test_bucket_ids_are_not_negative_for_negative_hashes() -> None:
    keys = ["polygenelubricants", "abc", "zzzzzzzzzz"]
    assert all(0 <= bucket < 7 for bucket in buckets(keys, "id", count=7))
    assert buckets(["polygenelubricants"], "id") == [31]


def test_bucket_ids_refuse_unknown_hash_fields_and_keys_of_another_form() -> None:
    with pytest.raises(UserError, match=r"hash field 'nam' is not a record key field\. Did you mean 'name'"):
        buckets(["id:1,name:x"], "id", "name", hash_fields=("nam",))
    with pytest.raises(UserError, match="needs 1 to 99999999 buckets, not 0"):
        buckets(["a"], "id", count=0)
    with pytest.raises(UserError, match=r"record key 'abc' does not have the form id:\.\.\.,name:\.\.\."):
        buckets(["id:1,name:x", "abc"], "id", "name")


def test_bucket_file_id_begins_with_its_bucket() -> None:
    assert bucket_file_id(3, UUID) == "00000003-c487-487d-abbe-fe9b30b1c0cc-0"
    assert bucket_of("00000003-c487-487d-abbe-fe9b30b1c0cc-0") == 3
    assert bucket_of("00000012-0000-0000-0000-000000000000-0") == 12


@pytest.mark.parametrize("file_id", ["6e1d5cc4-c487-487d-abbe-fe9b30b1c0cc-0", "", "0000000-c487", "00000003"])
def test_bucket_of_refuses_a_file_id_without_bucket_number(file_id: str) -> None:
    with pytest.raises(UserError, match=f"file id '{file_id}' does not begin with a bucket number"):
        bucket_of(file_id)


@pytest.mark.parametrize(("bucket", "uuid"), [(-1, UUID), (100_000_000, UUID), (1, "6e1d5cc4")])
def test_bucket_file_id_refuses_an_invalid_bucket_or_uuid(bucket: int, uuid: str) -> None:
    with pytest.raises(UserError, match="cannot form a file id"):
        bucket_file_id(bucket, uuid)


def test_bucket_table_stores_the_record_key_for_the_services_of_hudi() -> None:
    options = {"hoodie.index.type": "bucket", "hoodie.bucket.index.num.buckets": "4"}
    bucketed = declared_properties(TableDeclaration(name="t", record_key=("a", "b"), options=options))
    assert bucketed["hoodie.datasource.write.recordkey.field"] == "a,b"
    assert bucketed["hoodie.table.recordkey.fields"] == "a,b"
    plain = declared_properties(TableDeclaration(name="t", record_key=("a", "b")))
    assert "hoodie.datasource.write.recordkey.field" not in plain
