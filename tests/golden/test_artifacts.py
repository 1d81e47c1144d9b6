"""Test that single files of Apache Hudi are decoded, and encoded to equal content."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.format.avro.schema import arrow_to_avro, avro_to_arrow
from lakehouse.core.format.file_names import parse_base_file, parse_instant, parse_log_file
from lakehouse.core.format.parquet.bloom_filter import BloomBuilder, BloomFilter
from lakehouse.core.format.partition_metadata import PARTITION_METADATA_NAME, parse_partition_metadata
from lakehouse.core.format.properties import parse_properties, render_properties, table_checksum
from lakehouse.core.format.timeline import schemas
from lakehouse.core.format.timeline.commit_files import decode_files, files_of
from lakehouse.core.format.timeline.commit_metadata import (
    decode_commit,
    decode_requested_replace,
    decode_summary,
    encode_requested_replace,
)
from lakehouse.core.format.timeline.rollback import decode_rollback_metadata, decode_rollback_plan
from lakehouse.core.layout.registry import table_layout
from lakehouse.errors import UnsupportedError
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.instant import Action, Instant, State
from tests.support.shared import fixtures

WRITES = (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT)


def files_in(*, of_versions: tuple[str, ...] = ("v6", "v8", "v9")) -> Iterator[tuple[str, str, bytes]]:
    """Yield (table, path, content) of each file below `.hoodie` in the zips, also of the metadata tables."""
    for path in sorted(fixtures("hudi_tables").glob("*.zip")):
        if not path.stem.split("_")[1].startswith(of_versions):
            continue
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if "/.hoodie/" in name and "/._" not in name and not name.startswith("__MACOSX"):
                    yield path.stem, name, archive.read(name)


def instants_in(**options: Any) -> Iterator[tuple[str, Instant, bytes]]:
    for table, path, data in files_in(**options):
        instant = parse_instant(path.rpartition("/")[2])
        if instant is not None and "/history/" not in path:
            yield f"{table}:{path}", instant, data


def test_each_commit_of_hudi_is_decoded_and_round_trips() -> None:
    count = 0
    for name, instant, data in instants_in():
        if instant.action not in WRITES or instant.state is State.REQUESTED or not data:
            continue
        metadata = decode_commit(data)
        for stat in metadata.stats:
            if instant.is_completed:
                assert stat.path.startswith(stat.partition) and stat.file_id in stat.path, name
        assert decode_files(data).equals(files_of(metadata.stats)), name
        summary = decode_summary(data)
        assert (summary.stats, summary.extra, summary.replaced) == ((), metadata.extra, metadata.replaced), name
        replace = instant.action is Action.REPLACECOMMIT and instant.is_completed
        version = 6 if "_v6_" in name else 9
        assert decode_commit(table_layout(version).encode_commit(metadata, replace=replace)) == metadata, name
        count += 1
    assert count > 500


def test_encoded_commits_differ_from_hudis_only_in_fields_outside_the_model() -> None:
    count = 0
    for name, instant, data in instants_in(of_versions=("v9",)):
        if instant.action is not Action.COMMIT or not data or "/metadata/" in name or "_txns_" not in name:
            continue
        theirs, ours = record_of(data), record_of(table_layout(9).encode_commit(decode_commit(data)))
        if theirs["operationType"] == "COMPACT":
            continue
        assert ours == theirs, name
        count += 1
    assert count > 50


def test_the_request_of_an_overwrite_equals_hudis() -> None:
    seen = 0
    for name, instant, data in instants_in():
        is_request = instant.action is Action.REPLACECOMMIT and instant.state is State.REQUESTED
        if is_request and data and record_of(data)["clusteringPlan"] is None:
            assert record_of(data) == record_of(encode_requested_replace()), name
            seen += 1
    assert seen > 5


def test_clustering_plans_name_the_file_groups_that_their_commit_replaced() -> None:
    plans, done = {}, {}
    for name, instant, data in instants_in():
        table = name.partition(":")[0]
        if instant.action is Action.CLUSTERING and instant.state is State.REQUESTED:
            plans[table, instant.requested] = decode_requested_replace(data)
        if instant.action is Action.REPLACECOMMIT and instant.is_completed:
            done[table, instant.requested] = decode_commit(data).replaced
    finished = plans.keys() & done.keys()
    assert finished
    for key in finished:
        assert {p: set(ids) for p, ids in plans[key].items()} == {p: set(ids) for p, ids in done[key].items()}


def test_timeline_schemas_equal_those_in_hudis_files() -> None:
    ours = {
        schema["name"]: schema
        for schema in (
            schemas.COMMIT_METADATA,
            schemas.REPLACE_COMMIT_METADATA,
            schemas.REQUESTED_REPLACE_METADATA,
            schemas.ROLLBACK_PLAN,
            schemas.ROLLBACK_METADATA,
        )
    }
    seen = set()
    for name, _, data in instants_in(of_versions=("v9",)):
        if data:
            embedded = json.loads(fastavro.reader(io.BytesIO(data)).metadata["avro.schema"])
            if embedded["name"] in ours:
                assert bare(embedded) == bare(ours[embedded["name"]]), name
                seen.add(embedded["name"])
    assert seen == set(ours)


def test_rollbacks_of_version_9_are_decoded() -> None:
    target = "20260403184242950"
    path = f"cefd0149-a1ea-4981-abda-34e0b9d9ef12-0_0-33-86_{target}.parquet"
    plans = 0
    for name, instant, data in instants_in(of_versions=("v9",)):
        if instant.action is not Action.ROLLBACK or "/metadata/" in name or not data:
            continue
        if instant.state is State.REQUESTED:
            plan = decode_rollback_plan(data, base_path="/opt/data/warehouse/v9_nonpartitioned_rollback_mor")
            assert (plan.target, plan.action) == (target, "deltacommit")
            assert [request.files for request in plan.requests] == [(path,)]
            plans += 1
        else:
            done = decode_rollback_metadata(data, base_path="/elsewhere")
            assert (done.target, done.action, done.seconds) == (target, "deltacommit", 0.195)
            assert (dict(done.deleted), dict(done.failed)) == ({"": (path,)}, {})
    assert plans == 1


def test_a_rollback_of_version_6_names_the_slice_that_gets_a_command_block() -> None:
    requests = [
        data
        for _, instant, data in instants_in(of_versions=("v6",))
        if instant.action is Action.ROLLBACK and instant.state is State.REQUESTED
    ]
    assert len(requests) == 1
    plan = table_layout(6).decode_rollback_plan(requests[0], base_path="/t")
    assert plan.target == "20250126040826878"
    (request,) = (request for request in plan.requests if request.base_instant)
    assert request.file_id and len(request.logs) == 1 and f"_{request.base_instant}.log." in next(iter(request.logs))


def test_properties_of_each_table_are_parsed_and_have_the_computed_checksum() -> None:
    count = 0
    for name, path, data in files_in(of_versions=("v", "0x")):
        if path.endswith("/hoodie.properties"):
            properties = parse_properties(data)
            assert parse_properties(render_properties(properties)) == properties
            database, table = properties.get("hoodie.database.name"), properties["hoodie.table.name"]
            if "hoodie.table.checksum" in properties:
                assert properties["hoodie.table.checksum"] == str(table_checksum(database, table)), name
                count += 1
    assert count > 40


def test_each_data_file_of_each_table_is_recognized_by_name() -> None:
    bases = logs = 0
    for zipped in sorted(fixtures("hudi_tables").glob("*.zip")):
        with zipfile.ZipFile(zipped) as archive:
            names = [name.rpartition("/")[2] for name in archive.namelist() if "/._" not in name]
        for name in names:
            base, log = parse_base_file(name, "", 0), parse_log_file(name, "", 0)
            assert [file.name for file in (base, log) if file is not None] in ([], [name])
            is_of_hudi = not name.startswith("part-")  # one zip also contains a file of expected rows
            is_data = is_of_hudi and (name.endswith((".parquet", ".lance", ".hfile")) or ".log." in name)
            assert is_data == (base is not None or log is not None), name
            bases += base is not None
            logs += log is not None
    assert bases > 200 and logs > 100


def test_table_schemas_of_hudi_round_trip() -> None:
    count = 0
    for name, path, data in files_in():
        instant = parse_instant(path.rpartition("/")[2])
        if path.endswith("/hoodie.properties") and "/metadata/" not in path:
            text = parse_properties(data).get("hoodie.table.create.schema")
        elif instant is not None and instant.is_completed and instant.action in WRITES and "/metadata/" not in path:
            text = decode_commit(data).extra.get("schema")
        else:
            continue
        if text:
            theirs = json.loads(text)
            table = theirs["name"].removesuffix("_record")
            assert normal(json.loads(arrow_to_avro(avro_to_arrow(text), table=table))) == normal(theirs), name
            count += 1
    assert count > 150


def test_partition_metadata_of_each_partition_is_parsed() -> None:
    count = 0
    for zipped in sorted(fixtures("hudi_tables").glob("*.zip")):
        with zipfile.ZipFile(zipped) as archive:
            for name in archive.namelist():
                if name.endswith(f"/{PARTITION_METADATA_NAME}") and "/.hoodie/" not in name:
                    instant, depth = parse_partition_metadata(archive.read(name))
                    assert len(instant) in (14, 17)
                    assert name.count("/") == depth + 1, name
                    count += 1
    assert count > 50


def test_the_version_6_commit_artefact_is_decoded() -> None:
    metadata = decode_commit((artefact("commit_metadata/v6_commit.json")).read_bytes())
    assert metadata.operation == "UPSERT"
    assert metadata.stats == (
        WriteStat(
            partition="",
            file_id="a079bdb3-731c-4894-b855-abfcd6921007-0",
            path="a079bdb3-731c-4894-b855-abfcd6921007-0_0-203-274_20240418173551906.parquet",
            prev_commit="20240418173550988",
            num_writes=4,
            num_inserts=1,
            num_updates=1,
            size_bytes=441520,
            seconds=0.105,
        ),
    )
    assert json.loads(metadata.extra["schema"])["name"] == "v6_nonpartitioned_record"
    assert decode_commit(table_layout(6).encode_commit(metadata)) == metadata


def test_the_version_8_deltacommit_artefact_is_decoded() -> None:
    metadata = decode_commit(artefact("commit_metadata/v8_deltacommit.avro").read_bytes())
    assert isinstance(metadata, CommitMetadata) and metadata.stats
    assert all(stat.path and stat.size_bytes for stat in metadata.stats)
    assert decode_commit(table_layout(8).encode_commit(metadata)) == metadata


def bloom_artefact(name: str) -> str:
    """Return the last line of an artefact; the lines before it are a licence."""
    return artefact(f"bloom/{name}").read_text().strip().splitlines()[-1]


MURMUR = [
    ("simple_200_000001_murmur.bf.data", None),
    ("simple_1000_000001_murmur.bf.data", None),
    ("simple_5000_000001_murmur.bf.data", None),
    ("dynamic_200_000001_murmur_1000.bf.data", "DYNAMIC_V0"),
]


@pytest.mark.parametrize(("name", "type_code"), MURMUR)
def test_bloom_artefacts_contain_each_key_and_round_trip(name: str, type_code: str | None) -> None:
    text, keys = bloom_artefact(name), pa.array(bloom_artefact("all_10000.keys.data").split(","))
    assert len(keys) == 10_000
    read = BloomFilter.from_text(text, type_code)
    assert read.might_contain(keys).all()
    assert read.to_text() == text
    assert read.remaining == 0


def test_the_sizes_of_bloom_artefacts_equal_the_computed_sizes() -> None:
    built = BloomBuilder(5000, 0.000001).finish()
    read = BloomFilter.from_text(bloom_artefact("simple_5000_000001_murmur.bf.data"), "SIMPLE")
    assert (read.num_bits, read.num_hashes) == (built.num_bits, built.num_hashes)
    dynamic = BloomFilter.from_text(bloom_artefact("dynamic_200_000001_murmur_1000.bf.data"), "DYNAMIC_V0")
    assert (len(dynamic.rows), dynamic.entries, dynamic.count) == (5, 200, 10_000)


def test_a_half_filled_bloom_artefact_is_rebuilt_with_equal_bits() -> None:
    keys = pa.array(bloom_artefact("all_10000.keys.data").split(","))
    read = BloomFilter.from_text(bloom_artefact("simple_5000_000001_murmur.bf.data"), None)
    built = BloomFilter.build(keys, entries=5000, fpp=0.000001, dynamic_max=1)
    assert built.rows[0].tobytes() == read.rows[0].tobytes()


def test_a_jenkins_bloom_filter_is_kept_but_not_used() -> None:
    text = bloom_artefact("simple_5000_000001_jenkins.bf.data")
    read = BloomFilter.from_text(text, None)
    assert read.to_text() == text
    with pytest.raises(UnsupportedError, match="Jenkins"):
        read.might_contain(pa.array(["a"]))
    with pytest.raises(UnsupportedError, match="Jenkins"):
        read.add(pa.array(["a"]))


def test_bloom_filters_in_base_files_equal_those_of_this_writer() -> None:
    rebuilt = files = 0
    for zipped in sorted(fixtures("hudi_tables").glob("cow_v[89]*.zip")):
        with zipfile.ZipFile(zipped) as archive:
            for name in archive.namelist():
                if not name.endswith(".parquet") or "/.hoodie/" in name or "/._" in name:
                    continue
                file = pq.ParquetFile(io.BytesIO(archive.read(name)))
                footer = file.metadata.metadata or {}
                text = footer.get(b"org.apache.hudi.bloomfilter", b"").decode()
                if not text:
                    continue
                keys = file.read(["_hoodie_record_key"]).column(0)
                type_code = footer[b"hoodie_bloom_filter_type_code"].decode()
                read = BloomFilter.from_text(text, type_code)
                assert read.might_contain(keys).all(), name
                assert read.to_text() == text
                # The filter of a rewritten file may also have deleted keys, or count a key twice.
                built = BloomFilter.build(keys, entries=read.entries, fpp=1e-9)
                rebuilt += built.to_text() == text
                files += 1
    assert files > 40 and rebuilt > files * 0.8


def artefact(name: str) -> Path:
    return fixtures(f"hudi_artifacts/{name}")


def record_of(data: bytes) -> dict[str, Any]:
    (record,) = fastavro.reader(io.BytesIO(data))
    assert isinstance(record, dict)
    return record


def normal(schema: Any) -> Any:
    """Return the schema with null first in unions and without defaults and docs, which vary between Hudi's writers."""
    if isinstance(schema, list):
        return sorted((normal(part) for part in schema), key=lambda part: part != "null")
    if not isinstance(schema, dict):
        return schema
    remaining = {key: value for key, value in schema.items() if key not in ("default", "doc")}
    return {key: [normal(f) for f in value] if key == "fields" else normal(value) for key, value in remaining.items()}


def bare(schema: Any) -> Any:
    """Return the schema without docs and without the defaults inside types, which have no meaning in Avro."""
    if isinstance(schema, list):
        return [bare(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    is_collection = schema.get("type") in ("array", "map")
    dropped = {"doc", "default"} if is_collection else {"doc"}
    return {key: bare(value) for key, value in schema.items() if key not in dropped}
