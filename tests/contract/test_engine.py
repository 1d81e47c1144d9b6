"""Contract of engines: the behaviour that operations rely on, run on local threads and on Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.progress import Stage, observed_stage, observing
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.operations.commit.results import Committed
from lakehouse.model.attempt import Attempt
from tests.support.model import Model, Verb, apply_verb, read
from tests.support.progress import CountingObserver
from tests.support.tables import Shape, batch, make_env, make_table, row

ROWS = pa.table(
    {
        "key": [f"k{number % 7}" for number in range(500)],
        "n": pa.array(range(500), pa.int64()),
        "at": pa.array(range(500), pa.timestamp("us", "UTC")),
        "local": pa.array(range(500), pa.timestamp("us")),
        "money": pa.array([None] * 500, pa.decimal128(10, 2)),
    }
)


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine under test, and the function that converts an Arrow table to a frame of it."""

    engine: Engine
    frame: Callable[[pa.Table], Any]


@pytest.fixture(params=["one thread", "threads", pytest.param("spark", marks=pytest.mark.spark)])
def subject(request: pytest.FixtureRequest) -> Subject:
    """Return each engine: one thread, four threads and Spark."""
    if request.param != "spark":
        return Subject(LocalEngine(1 if request.param == "one thread" else 4), lambda rows: rows)
    from lakehouse.spark.engine import SparkEngine
    from lakehouse.spark.scan import spark_schema

    spark = request.getfixturevalue("spark")
    return Subject(SparkEngine(spark, 64 << 20), lambda rows: spark.createDataFrame(rows, spark_schema(rows.schema)))


# Workers cannot import this module. Functions for workers are therefore defined inside functions and pickled by value.
def shard_contents() -> Callable[[Attempt, Iterator[pa.RecordBatch]], Iterator[tuple[str, list[Any]]]]:
    """Return a function that yields the token of its attempt and the rows of its shard."""

    def collect(attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, list[Any]]]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        yield attempt.token, rows

    return collect


def test_engine_returns_the_schema_of_a_frame_in_arrow_types(subject: Subject) -> None:
    schema = subject.engine.schema(subject.frame(ROWS))
    assert schema.names == ROWS.schema.names
    assert schema.types == ROWS.schema.types


def test_engine_reports_which_frames_can_be_read_repeatedly(subject: Subject) -> None:
    assert subject.engine.repeats(subject.frame(ROWS)) == isinstance(subject.engine, LocalEngine)
    reader = pa.RecordBatchReader.from_batches(ROWS.schema, ROWS.to_batches())
    assert not subject.engine.repeats(reader)


def test_exact_exchange_puts_all_rows_of_a_value_into_one_shard(subject: Subject) -> None:
    shards = subject.engine.exchange(subject.frame(ROWS), shard_contents(), by=("key",), hint="exact")
    assert Counter(row["n"] for _, rows in shards for row in rows) == Counter(range(500))
    homes: dict[str, set[str]] = {}
    for token, rows in shards:
        for row_ in rows:
            homes.setdefault(row_["key"], set()).add(token)
    assert all(len(tokens) == 1 for tokens in homes.values()) and len(homes) == 7
    assert len({token for token, _ in shards}) == len(shards)


@pytest.mark.parametrize("hint", ["balanced", "none"])
def test_exchange_passes_every_row_on_once(subject: Subject, hint: str) -> None:
    shards = subject.engine.exchange(subject.frame(ROWS), shard_contents(), by=("key",), hint=hint)
    found = sorted((row["n"], row["at"], row["local"]) for _, rows in shards for row in rows)
    wanted = sorted((row["n"], row["at"], row["local"]) for row in ROWS.to_pylist())
    assert [tuple(map(str, values)) for values in found] == [tuple(map(str, values)) for values in wanted]


def test_exchange_accepts_an_empty_frame(subject: Subject) -> None:
    empty = subject.frame(ROWS.schema.empty_table())
    shards = subject.engine.exchange(empty, shard_contents(), by=("key",), hint="exact")
    assert [row for _, rows in shards for row in rows] == []


def test_exchange_returns_any_number_of_results_per_shard(subject: Subject) -> None:
    def rows_of(_: Attempt, batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
        for part in batches:
            yield from (n for n in part.column(1).to_pylist() if n < 10)

    assert sorted(subject.engine.exchange(subject.frame(ROWS), rows_of, by=("key",), hint="exact")) == list(range(10))


@pytest.mark.parametrize("light", [False, True])
def test_run_returns_results_in_the_order_of_the_tasks(subject: Subject, light: bool) -> None:
    # There are more tasks than one start per core, so that an engine puts several light tasks into one start.
    tasks = list(range(4 * subject.engine.parallelism + 1))
    results = subject.engine.run(lambda attempt, task: (task * task, attempt), tasks, light=light)
    assert [square for square, _ in results] == [n * n for n in tasks]
    # Sequence numbers of rows in a commit start with the number of the task.
    assert [attempt.partition for _, attempt in results] == tasks
    assert len({attempt.token for _, attempt in results}) == len(tasks)
    assert subject.engine.run(lambda attempt, task: task, []) == []


@pytest.mark.parametrize("light", [False, True])
def test_run_reports_each_task_once_before_it_returns(subject: Subject, light: bool) -> None:
    tasks = list(range(4 * subject.engine.parallelism + 1))
    observer = CountingObserver()
    work = Stage(name="work", table="t", unit="task", total=len(tasks), total_bytes=sum(tasks))
    with observing(observer), observed_stage(work) as running, running.tasks(tasks):
        assert subject.engine.run(lambda _, task: task * task, tasks, light=light) == [n * n for n in tasks]
        assert observer.calls["work"] == len(tasks)
    observer.assert_complete("work")


def test_attempts_of_an_engine_have_distinct_tokens(subject: Subject) -> None:
    tokens = [token for _ in range(2) for token in subject.engine.run(lambda attempt, _: attempt.token, [1, 2, 3])]
    tokens += [
        token
        for token, _ in subject.engine.exchange(subject.frame(ROWS), shard_contents(), by=("key",), hint="balanced")
    ]
    assert len(set(tokens)) == len(tokens)
    assert all(len(token.split("-")) == 3 and token.replace("-", "").isdigit() for token in tokens)


def test_run_fails_if_a_task_fails(subject: Subject) -> None:
    def fail(_: Attempt, task: int) -> int:
        if task == 1:
            raise ValueError("task 1 is broken")
        return task

    with pytest.raises(Exception, match="task 1 is broken"):
        subject.engine.run(fail, [0, 1, 2])


def test_parallelism_is_at_least_one(subject: Subject) -> None:
    assert subject.engine.parallelism >= 1


@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET"])
def test_writes_on_each_engine_give_the_rows_of_the_model(subject: Subject, index: str, tmp_path: Path) -> None:
    shape = Shape(index=index, rows_per_file=4)
    table = make_table(shape, env=make_env(str(tmp_path / "t")))
    model = Model(shape)
    first = tuple(row(f"k{n}", p="ab"[n % 2], v="first", ts=n % 3) for n in range(20))
    second = tuple(row(f"k{n}", p="ab"[n % 2], v="second", ts=1) for n in range(10, 30))
    deletes = tuple(row(f"k{n}", p="ab"[n % 2], ts=9, _hoodie_is_deleted=True) for n in (0, 11))
    history = [
        Verb(name="bulk_insert", rows=first),
        Verb(name="upsert", rows=(*second, *second[:5], *deletes)),
        Verb(name="delete", rows=first[:4]),
        Verb(name="insert_overwrite", rows=(row("k9", p="b"), row("k99", p="b"))),
    ]
    for verb in history:
        # The rows of each verb go through the engine under test. The model applies the same verb.
        outcome = apply_verb(_Through(table, subject), model, verb, unique=False)
        assert isinstance(outcome, Committed)
        model.committed(outcome.instant)
        assert read(table) == model.snapshot(), verb.name


class _Through:
    """A table that converts the rows of each call to a frame of the engine first."""

    def __init__(self, table: Any, subject: Subject) -> None:
        self._table, self._subject = table, subject

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        method = getattr(self._table, name)
        return lambda rows: method(self._subject.frame(rows) if isinstance(rows, pa.Table) else rows)


def test_local_engine_accepts_only_arrow_data() -> None:
    with pytest.raises(Exception, match="rows are of type list"):
        LocalEngine().schema([{"id": 1}])
    reader = pa.RecordBatchReader.from_batches(ROWS.schema, ROWS.to_batches())
    assert LocalEngine().schema(reader) == ROWS.schema
    assert LocalEngine().schema(batch([row("k")]).to_batches()[0]).names[0] == "id"
