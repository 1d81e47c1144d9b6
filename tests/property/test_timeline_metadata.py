"""Property tests of commit and rollback metadata: codecs round trip, and damaged bytes raise an error."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.core.format.timeline import commit_files
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.format.timeline.rollback import (
    decode_rollback_metadata,
    decode_rollback_plan,
    encode_rollback_metadata,
    encode_rollback_plan,
)
from lakehouse.core.layout.registry import table_layout
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import CommitMetadata, RollbackMetadata, RollbackPlan, RollbackRequest, WriteStat

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
NAMES = st.text("abc-0", min_size=1, max_size=8)
PARTITIONS = st.sampled_from(["", "day=1", "a/b", "\u00e9"])
COUNTS = st.integers(0, 2**62)
INSTANTS = st.integers(1, 10**17 - 1).map(lambda n: f"{n:017d}")


@st.composite
def stats_of(draw: st.DrawFn, partition: str) -> WriteStat:
    name = f"{draw(NAMES)}.parquet"
    previous = draw(st.none() | INSTANTS)
    return WriteStat(
        partition=partition,
        file_id=draw(NAMES),
        path=f"{partition}/{name}" if partition else name,
        prev_commit=previous,
        prev_base_file=None if previous is None else draw(NAMES),
        num_writes=draw(COUNTS),
        num_inserts=draw(COUNTS),
        num_updates=draw(COUNTS),
        num_deletes=draw(COUNTS),
        size_bytes=draw(COUNTS),
        seconds=draw(st.integers(0, 10**6)) / 1000,
        log_records=draw(COUNTS),
        log_blocks=draw(COUNTS),
        log_files_compacted=draw(COUNTS),
        log_bytes_compacted=draw(COUNTS),
        updated_compacted=draw(COUNTS),
        corrupt_blocks=draw(COUNTS),
        cdc_files=draw(st.dictionaries(NAMES, COUNTS, max_size=2)),
        event_time=draw(st.none() | st.tuples(COUNTS, COUNTS)),
    )


@st.composite
def log_stats_of(draw: st.DrawFn, partition: str) -> WriteStat:
    group, version = draw(NAMES), draw(st.integers(1, 9))
    name = f".{group}_{draw(INSTANTS)}.log.{version}_0-1-2"
    # Stats do not repeat values that follow from the path.
    logs = draw(st.lists(NAMES, min_size=1, max_size=2).map(tuple) | st.just(()))
    return WriteStat(
        partition=partition,
        file_id=group,
        path=f"{partition}/{name}" if partition else name,
        prev_commit=draw(INSTANTS),
        num_updates=draw(COUNTS),
        log_version=draw(st.sampled_from([0, version + 1])),
        base_file=draw(st.just("") | NAMES),
        log_files=logs,
    )


STATS = st.lists(st.sampled_from([stats_of, log_stats_of]), min_size=1, max_size=2)


@st.composite
def commits(draw: st.DrawFn) -> CommitMetadata:
    partitions = draw(st.lists(PARTITIONS, unique=True, max_size=3))
    return CommitMetadata(
        operation=draw(st.sampled_from(["UPSERT", "COMPACT", "UPSERT_PREPPED", "SOMETHING_NEW"])),
        stats=tuple(draw(kind(p)) for p in partitions for kind in draw(STATS)),
        replaced=draw(st.dictionaries(PARTITIONS, st.lists(NAMES, max_size=2).map(tuple), max_size=2)),
        extra=draw(st.dictionaries(TEXT, TEXT, max_size=3)),
        compacted=draw(st.booleans()),
    )


@given(commits(), st.sampled_from([6, 8, 9]))
def test_commit_metadata_round_trips(metadata: CommitMetadata, version: int) -> None:
    data = table_layout(version).encode_commit(metadata, replace=True)
    assert decode_commit(data) == metadata
    assert commit_files.decode_files(data).equals(commit_files.files_of(metadata.stats))


SAMPLE = table_layout(9).encode_commit(
    CommitMetadata(operation="INSERT", stats=(WriteStat(partition="p", file_id="a", path="p/a.parquet"),)),
)


@settings(max_examples=200)
@given(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255), st.booleans())
def test_damaged_commit_metadata_is_decoded_or_corrupt(at: int, byte: int, is_cut: bool) -> None:
    damaged = SAMPLE[:at] if is_cut else SAMPLE[:at] + bytes([byte]) + SAMPLE[at + 1 :]
    try:
        decoded = decode_commit(damaged)
    except CorruptTableError as error:
        assert error.message
    else:
        assert isinstance(decoded, CommitMetadata) and not is_cut


@st.composite
def files_of(draw: st.DrawFn, partition: str, *, min_size: int = 0) -> tuple[str, ...]:
    names = draw(st.lists(NAMES, unique=True, min_size=min_size, max_size=3))
    return tuple(f"{partition}/{name}" if partition else name for name in names)


@given(st.data(), st.sampled_from(["/t", "file:///data/t", "s3://lake/t/"]), INSTANTS)
def test_rollback_plans_and_metadata_round_trip(data: st.DataObject, base: str, target: str) -> None:
    partitions = data.draw(st.lists(PARTITIONS, unique=True, max_size=3))
    deleted = {partition: data.draw(files_of(partition)) for partition in partitions}
    failed = {partition: data.draw(files_of(partition, min_size=1)) for partition in partitions[:1]}
    requests = tuple(RollbackRequest(partition=partition, files=files) for partition, files in deleted.items())
    plan = RollbackPlan(target=target, action="commit", requests=requests)
    assert decode_rollback_plan(encode_rollback_plan(plan, base_path=base), base_path=base) == plan
    done = RollbackMetadata(
        start_time=target, seconds=0.5, target=target, action="commit", deleted=deleted, failed=failed
    )
    assert decode_rollback_metadata(encode_rollback_metadata(done, base_path=base), base_path=base) == done
