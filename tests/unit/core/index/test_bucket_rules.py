"""Bucket rules: numbers of buckets per partition, their storage in the table, and the look-up of rows by them."""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.hashing_config import (
    HASHING_CONFIGS,
    HashingConfig,
    decode_hashing_config,
    encode_hashing_config,
    hashing_config_path,
)
from lakehouse.core.index.hash.bucket import bucket_ids, bucket_of
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.create.create import create_table
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.storage.fault_injection import FaultyStorage, SimulatedCrash
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from lakehouse.model.instant import Action
from lakehouse.spec.table.bucket_rules import EXPRESSIONS, NUM_BUCKETS, BucketRules, parse_rules
from tests.support.model import Run, histories, key_of, rows, shapes
from tests.support.tables import SeededIds, Shape, batch, data_rows, examples, make_env, make_table, row

#: Hudi 1.2 wrote these bytes for the expressions `^a,4;b\d?$,1` and 2 buckets for other partitions.
HUDIS = (
    b'{\n  "expressions" : "^a,4;b\\\\d?$,1",\n  "defaultBucketNumber" : 2,\n  "rule" : "regex",\n  "version" : 1,\n'
    b'  "instant" : "20261121164110853"\n}'
)
INITIAL = hashing_config_path("00000000000000")
RULED = Shape(index="BUCKET", buckets=2, options={EXPRESSIONS: "^a,4;b|c,1"})


def counts(text: str, *partitions: str) -> list[int]:
    rules = BucketRules(9, parse_rules(text))
    return [rules.of(partition) for partition in partitions]


def test_bucket_rules_use_the_first_pattern_that_is_found_in_the_path() -> None:
    assert counts("", "a") == [9]
    assert counts("a,4", "a", "bab", "b") == [4, 4, 9]
    assert counts("^day=2026-11-(27|30)$,64; ^day=2026-,16 ;", "day=2026-11-27", "day=2026-11-28", "day=2025-1-1") == [
        *(64, 16, 9)
    ]
    assert counts("a.*,1;a,2", "xa", "a") == [1, 1]
    assert counts(r"\d{4}-(06-(01|17|18)|11-(01|10|11)),256", "2026-06-17", "2026-06-02") == [256, 9]


def test_bucket_rules_read_character_classes_as_ascii_as_java_does() -> None:
    assert counts(r"^\d$,2;^\w$,3", "1", "a", "\u0663", "\u00fc") == [2, 3, 9, 9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "'a' is not a pattern and a number"),
        ("a,b", "'a,b' is not a pattern and a number"),
        ("a,1;;b,2", "'' is not a pattern and a number"),
        ("a,-1", "'a,-1' is not a pattern"),
        ("a,1.5", "'a,1.5' is not a pattern"),
        ("a,0", "pattern 'a' requests 0 buckets"),
        ("a,100000000", "pattern 'a' requests 100000000 buckets"),
        (",3", "pattern '' cannot be used"),
        ("a{1,2},3", r"pattern 'a\{1,2\}' cannot be used"),
        ("a(b,3", r"pattern 'a\(b' is not a regular expression"),
        ("*,3", "not a regular expression: no argument for repetition operator"),
        (r"\pL,3", r"'\\\\p' in pattern"),
        ("(?=a)b,3", "no look-around"),
        (r"(a)\1,3", "no look-around, back-references"),
        ("(?i)ü,3", "may ignore the case of letters that are not ASCII"),
        (r"a\Z,3", r"'\\\\Z' in pattern"),
        ("(?P<x>a),3", "has another meaning"),
        ("(?u)a,3", "has another meaning"),
        ("[a-z&&[^b]],3", "has another meaning"),
        ("[a--b],3", "has another meaning"),
        ("a{x,3", "has another meaning"),
    ],
)
def test_parse_rules_refuses_an_invalid_rule_by_name(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_rules(text)
    with pytest.raises(UserError, match=re.escape(EXPRESSIONS)):
        make_table(replace(RULED, options={EXPRESSIONS: text}))


@pytest.mark.parametrize("text", [r"\[a\]{2},3", "(?i)a,3", "(?:a|b)+?,3", r"a\{,3"])
def test_parse_rules_accepts_expressions_that_java_and_python_read_alike(text: str) -> None:
    assert parse_rules(text) == ((text.rpartition(",")[0], 3),)


def test_bucket_rules_refuse_a_path_with_a_line_end() -> None:
    assert BucketRules(9).of("a\n") == 9
    for path in ("a\n", "a\u212a"):
        with pytest.raises(UserError, match=r"'a.*' contains a line end or a similar character"):
            counts("(?i)a,1", path)


def test_hashing_config_has_the_bytes_of_hudi() -> None:
    config = decode_hashing_config(HUDIS, "x")
    assert config == HashingConfig(expressions=r"^a,4;b\d?$,1", default=2, instant="20261121164110853")
    assert encode_hashing_config(config) == HUDIS
    with pytest.raises(CorruptTableError, match="x is not a bucket index configuration"):
        decode_hashing_config(b"{}", "x")


def test_bucket_ids_take_one_number_of_buckets_per_key() -> None:
    keys = pa.array([f"k{n}" for n in range(50)] * 2)
    numbers = pa.array([3] * 50 + [7] * 50, pa.int32()).to_numpy()
    found = bucket_ids(keys, key_fields=("id",), hash_fields=(), buckets=numbers).tolist()
    for count, part in ((3, found[:50]), (7, found[50:])):
        assert part == bucket_ids(keys[:50], key_fields=("id",), hash_fields=(), buckets=count).tolist()


def buckets_of(table: Table) -> dict[str, set[int]]:
    """Return the buckets of each partition; each bucket must have one file group."""
    found: dict[str, list[int]] = defaultdict(list)
    for file_slice in load_slices(table.refresh()):
        found[file_slice.partition].append(bucket_of(file_slice.file_id))
    assert all(len(buckets) == len(set(buckets)) for buckets in found.values())
    return {partition: set(buckets) for partition, buckets in found.items()}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("new_buckets", ["base", "log"])
def test_each_partition_has_its_number_of_files_and_updates_find_their_rows(kind: str, new_buckets: str) -> None:
    table = make_table(replace(RULED, type=kind, new_buckets=new_buckets))
    given = [row(f"k{n}", p="abcd"[n % 4], v="old") for n in range(80)]
    table.upsert(batch(given))
    expected = {"a": {0, 1, 2, 3}, "b": {0}, "c": {0}, "d": {0, 1}}
    assert buckets_of(table) == expected
    table.upsert(batch(old | {"ts": 2, "v": "new"} for old in given[::3]))
    table.delete(pa.table({"id": ["k0", "k1"], "p": ["a", "b"]}))
    values = {f["id"]: f["v"] for f in data_rows(table, ["id", "v"])}
    assert values == {r["id"]: "new" if n % 3 == 0 else "old" for n, r in enumerate(given) if n > 1}
    assert buckets_of(table) == expected
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
        assert buckets_of(table) == expected
        assert {f["id"]: f["v"] for f in data_rows(table, ["id", "v"])} == values
    table.delete(["k2"])  # without its partition, so the key is looked up in all partitions
    assert "k2" not in {f["id"] for f in data_rows(table, ["id"])}


@st.composite
def ruled(draw: st.DrawFn) -> Shape:
    keys = draw(st.sampled_from(["simple", "complex", "timestamp", "custom"]))
    kind = draw(st.sampled_from(["COPY_ON_WRITE", "MERGE_ON_READ"]))
    patterns = st.sampled_from(["a", "^a$", "b", "c.d", "HIVE", "1970", "/02$", "eu", ".*", "=", "%"])
    rules = draw(st.lists(st.tuples(patterns, st.integers(1, 5)), min_size=1, max_size=4))
    options = {EXPRESSIONS: ";".join(f"{pattern},{count}" for pattern, count in rules)}
    found: Shape = draw(shapes(type=kind, keys=keys, index="BUCKET", options=options))
    return found


@examples(12)
@given(shape=ruled(), history=histories(5, row=rows()))
def test_any_history_with_bucket_rules_equals_that_of_a_dict(shape: Shape, history: list[Any]) -> None:
    run = Run(make_table(shape), shape, unique=True)
    for verb in history:
        run.apply(verb)
        run.compare_snapshots(verb.name)
    rules = BucketRules(shape.buckets, parse_rules(shape.options[EXPRESSIONS]))
    found = buckets_of(run.table)
    fields = run.table.config.keys.record_key_fields
    for (path, _), versions in run.model.stored.items():
        key = pa.array([key_of(shape, versions[0].row)])
        if len(fields) == 1 or not key[0].as_py().count("__"):
            (bucket,) = bucket_ids(key, key_fields=fields, hash_fields=(), buckets=rules.of(path)).tolist()
            assert bucket in found[path]
    assert all(max(buckets) < rules.of(path) for path, buckets in found.items())


def test_table_stores_its_rule_where_hudi_reads_it_and_restores_it_after_a_crash() -> None:
    table = make_table(RULED)
    storage = table.refresh().env.storage
    written = storage.get(INITIAL)
    assert decode_hashing_config(written, "x") == HashingConfig(expressions="^a,4;b|c,1", default=2)
    storage.delete(INITIAL)
    table.upsert(batch([row("k1")]))
    assert storage.get(INITIAL) == written
    storage.delete(INITIAL)
    create_table(table.refresh().env, table.config.raw, exist_ok=True)
    assert storage.get(INITIAL) == written
    plain = make_table(Shape(index="BUCKET"))
    plain.upsert(batch([row("k1")]))
    assert plain.refresh().env.storage.list(HASHING_CONFIGS) == []


def test_table_whose_creation_crashed_is_completed_by_the_next_one() -> None:
    def make(storage: Storage) -> Table:
        options = {**RULED.table_options(), EXPRESSIONS: "a,3"}
        env = make_env(storage=storage)
        return Table.create(
            storage.root, name="t", record_key=["id"], partition_by=["p"], options=options, env=env, exist_ok=True
        )

    whole = FaultyStorage(make_env().storage)
    make(whole)
    assert whole.steps > 2
    for step in range(1, whole.steps + 1):
        inner = make_env().storage
        with pytest.raises(SimulatedCrash):
            make(FaultyStorage(inner, step))
        table = make(inner)
        table.upsert(batch(row(f"k{n}") for n in range(30)))
        assert buckets_of(table) == {"a": {0, 1, 2}}
        assert decode_hashing_config(inner.get(INITIAL), "x").expressions == "a,3"


def test_non_blocking_writers_choose_the_same_groups_in_each_partition() -> None:
    shape = replace(RULED, type="MERGE_ON_READ", new_buckets="log")
    table = make_table(shape)
    rival = Table.open(table.location, env=replace(table.refresh().env, ids=SeededIds(9)))
    mode = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    for number, writer in enumerate((table, rival, table)):
        rows = [row(f"k{n}", p="abd"[n // 20], ts=number, v=f"v{number}") for n in range(60)]
        writer.upsert(batch(rows), options=mode)
    assert buckets_of(table) == {"a": {0, 1, 2, 3}, "b": {0}, "d": {0, 1}}
    ids = {s.file_id for s in load_slices(table.refresh())}
    assert ids == {f"{bucket:08d}-0000-0000-0000-000000000000-0" for bucket in range(4)}
    assert {f["v"] for f in data_rows(table, ["v"])} == {"v2"}
    table.services.compaction.run(force=True)
    assert (len(data_rows(table)), buckets_of(table)["a"]) == (60, {0, 1, 2, 3})


def test_bucket_rules_are_picklable() -> None:
    rules = BucketRules(2, parse_rules("a,3"))
    assert pickle.loads(pickle.dumps(rules)) == rules


@pytest.mark.parametrize("made", [RULED, Shape(index="BUCKET")], ids=["ruled", "plain"])
def test_table_rule_cannot_be_changed_by_an_option(made: Shape) -> None:
    table = make_table(made)
    table.upsert(batch([row("k1")]))
    for options in ({EXPRESSIONS: "a,8"}, {NUM_BUCKETS: "16"}):
        with pytest.raises(UserError, match="contradicts the table"):
            table.upsert(batch([row("k2")]), options=options)
    assert len(data_rows(table)) == 1
    if made is RULED:
        table.upsert(batch([row("k2")]), options={EXPRESSIONS: "^a,4; b|c,1;"})
        with pytest.raises(UserError, match="contradicts the table"):
            table.upsert(batch([row("k2")]), options={EXPRESSIONS: ""})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (replace(RULED, keys="non_partition"), "has no partitions"),
        (replace(RULED, index="SIMPLE"), "needs hoodie.index.type=BUCKET"),
        (replace(RULED, buckets=0), "needs hoodie.index.type=BUCKET, and hoodie.bucket.index.num.buckets"),
    ],
)
def test_bucket_rules_without_partitions_or_buckets_are_refused_at_creation(shape: Shape, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_table(shape)


def test_rule_of_a_rescaling_is_used_only_after_it_is_completed() -> None:
    table = make_table(RULED)
    loaded = table.refresh()
    storage = loaded.env.storage
    pending = loaded.store.request(loaded.timeline, Action.REPLACECOMMIT, b"")
    later = HashingConfig(expressions="^a,5", default=3, instant=pending.requested)
    storage.create(hashing_config_path(later.instant), encode_hashing_config(later))
    lazy = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
    table.upsert(batch(row(f"k{n}", p="abd"[n % 3]) for n in range(60)), options=lazy)
    assert buckets_of(table) == {"a": {0, 1, 2, 3}, "b": {0}, "d": {0, 1}}
    table.rollback(pending.requested, force=True)
    assert [file.path for file in storage.list(HASHING_CONFIGS)] == [INITIAL]


def test_table_that_hudi_rescaled_is_written_by_the_newest_rule() -> None:
    env = make_env()
    table = make_table(RULED, env=env)
    later = HashingConfig(expressions="^a,5", default=3, instant="20200101000000000")
    env.storage.create(hashing_config_path(later.instant), encode_hashing_config(later))
    table.upsert(batch(row(f"k{n}", p="abd"[n // 20]) for n in range(60)))
    assert buckets_of(table) == {"a": {0, 1, 2, 3, 4}, "b": {0, 1, 2}, "d": {0, 1, 2}}
    table.upsert(batch([row("k0", p="a", ts=2)]), options={EXPRESSIONS: "^a,5", NUM_BUCKETS: "3"})
    assert len(data_rows(table)) == 60
    strange = replace(later, rule="hash", instant="20200101000000001")
    env.storage.create(hashing_config_path(strange.instant), encode_hashing_config(strange))
    with pytest.raises(UnsupportedError, match="rules of type hash"):
        table.upsert(batch([row("k0")]))


class Interrupted(FaultyStorage):
    """Storage that runs another writer once, before the first step whose name ends with `before`."""

    def __init__(self, inner: Storage, before: str, rival: Callable[[], None]) -> None:
        super().__init__(inner)
        self._before, self._rival = before, rival

    def step(self, name: str, call: Callable[[], Any]) -> Any:
        if name.endswith(self._before):
            rival, self._rival = self._rival, lambda: None
            rival()
        return super().step(name, call)


def test_write_during_a_rescaling_is_tried_again_with_the_new_rule(tmp_path: Path) -> None:
    table = make_table(RULED, env=make_env(str(tmp_path / "t")))
    table.upsert(batch(row(f"k{n}", p="abd"[n % 3]) for n in range(30)))
    storage = table.refresh().env.storage
    lazy = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}

    def rescale() -> None:
        done = table.insert_overwrite(batch([row("x1", p="x")]), options=lazy)
        assert isinstance(done, Committed)
        rule = HashingConfig(expressions="^a,4", default=3, instant=done.instant.requested)
        storage.create(hashing_config_path(rule.instant), encode_hashing_config(rule))

    # A clock and ids of its own, as a writer in another process has.
    rival_env = replace(make_env(storage=Interrupted(storage, ".inflight", rescale)), ids=SeededIds(7))
    rival = Table.open(table.location, env=rival_env)
    outcome = rival.upsert(batch([row("d1", p="d2"), row("n1", p="a")]), options=lazy)
    assert isinstance(outcome, Committed)
    assert outcome.conflicts == 1
    written = {
        r["_hoodie_record_key"]: r
        for r in table.scan(["_hoodie_record_key", "_hoodie_file_name"]).to_arrow().to_pylist()
    }
    expected = bucket_ids(pa.array(["n1"]), key_fields=("id",), hash_fields=("id",), buckets=4)
    assert bucket_of(written["n1"]["_hoodie_file_name"].partition("_")[0]) == expected[0]
    assert {f["id"] for f in data_rows(table, ["id"])} == {f"k{n}" for n in range(30)} | {"x1", "d1", "n1"}
