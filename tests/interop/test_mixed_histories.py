"""Random histories of tables that Apache Hudi 0.15, Hudi 1.2 and lakehouse write: in turn, and at the same time.

A dict {id: value} is the model. In turn, each step is a write, a service of lakehouse, or a write of lakehouse that is
killed before its commit; all readers must return the model. At the same time, each writer has its own keys, which are
in the same file groups as those of the others, so the last value of each key is known. The process of lakehouse is
killed with SIGKILL meanwhile, and started again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError
from lakehouse.model.instant import Action
from tests.interop.test_version_6_tables import OF_0_15, OF_1_2, opened, read_by_all
from tests.support import hudi_rs
from tests.support.hudi import Hudi, HudiError
from tests.support.hudi_0_15 import KINDS, TYPE
from tests.support.killed import killed_before_commit
from tests.support.version_6 import SORTED, batch
from tests.support.waiting import until

pytestmark = pytest.mark.jvm

_LOCKS = "org.apache.hudi.client.transaction.lock"
LOCK = {
    "hoodie.write.lock.provider": f"{_LOCKS}.FileSystemBasedLockProvider",
    "hoodie.write.lock.filesystem.expire": "0",
}
OURS = LOCK | {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.client.heartbeat.interval_in_ms": "1000",
}
#: The settings that make Hudi's writers safe beside others, and that leave the services to lakehouse.
SHARED = LOCK | {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.client.heartbeat.interval_in_ms": "1000",
    "hoodie.write.lock.num_retries": "100",
    "hoodie.write.lock.client.num_retries": "100",
    "hoodie.write.lock.wait_time_ms_between_retry": "50",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "50",
    "hoodie.embed.timeline.server": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline": "false",
}
STEPS = ("upsert", "upsert", "0.15", "0.15", "1.2", "1.2", "delete", "killed", "compaction", "clustering", "clean")
TURNS = 12 * int(os.environ.get("LAKEHOUSE_EXAMPLES", "1"))
ROUNDS = 3 * int(os.environ.get("LAKEHOUSE_EXAMPLES", "1"))


class History:
    """A table, and its rows as a dict."""

    def __init__(self, location: str, kind: str, writers: Mapping[str, tuple[Hudi, Mapping[str, str]]]) -> None:
        self.location, self.writers = location, writers
        self.options = {name: {**options, TYPE: kind} for name, (_, options) in writers.items()}
        self.rows: dict[str, str] = {}
        self.clock = 0

    def step(self, name: str, random: Random) -> None:
        """Run one step, and change the model."""
        self.clock += 1
        ids = random.sample(("a1", "a2", "a3", "b1", "b2", "b3", "c1"), random.choice((1, 2, 3)))
        rows = batch(ids, self.clock, f"{name} {self.clock}")
        written = dict.fromkeys(ids, f"{name} {self.clock}")
        if name in self.writers:
            hudi = self.writers[name][0]
            if random.random() < 0.25 and self.rows:
                deleted = random.sample(sorted(self.rows), 1)
                operation = {"hoodie.datasource.write.operation": "delete"}
                hudi.write(self.location, batch(deleted, self.clock, ""), {**self.options[name], **operation})
                self.rows.pop(deleted[0])
            else:
                hudi.write(self.location, rows, self.options[name])
                self.rows |= written
        elif name == "upsert":
            opened(self.location).upsert(rows)
            self.rows |= written
        elif name == "delete":
            opened(self.location).delete(rows.select(["id", "p"]))
            self.rows = {key: value for key, value in self.rows.items() if key not in ids}
        elif name == "killed":
            killed_before_commit(opened(self.location), rows)
        else:
            opened(self.location).services.named(name).run(force=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_all_readers_equal_a_dict_while_three_writers_write_in_turn(
    kind: str, seed: int, hudi: Hudi, hudi_0_15: Hudi, tmp_path: Path
) -> None:
    location, random = str(tmp_path / "table"), Random(f"{kind} {seed}")
    history = History(location, kind, {"0.15": (hudi_0_15, OF_0_15), "1.2": (hudi, OF_1_2)})
    creator = random.choice(("0.15", "1.2", "ours"))
    if creator == "ours":
        create(location, kind)
        history.step("upsert", random)
    else:
        writer, options = history.writers[creator]
        writer.write(location, batch(["a1", "b1"], 0, "first"), {**options, TYPE: kind}, mode="overwrite")
        history.rows = {"a1": "first", "b1": "first"}
    done = [creator]
    for number in range(TURNS):
        done.append(random.choice([step for step in STEPS if step != "compaction" or kind == "MERGE_ON_READ"]))
        history.step(done[-1], random)
        stored = opened(location).scan(["id", "v"]).to_arrow().to_pylist()
        assert sorted((row["id"], row["v"]) for row in stored) == sorted(history.rows.items()), done
        if number % 4 == 3:
            assert read_by_all(location, hudi, hudi_0_15) == history.rows, done
    opened(location).rollback_failed()
    assert read_by_all(location, hudi, hudi_0_15) == history.rows, done
    assert opened(location).validate(deep=True).corrupt == (), done


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", ["8", "9"])
def test_all_readers_equal_a_dict_while_hudi_and_lakehouse_write_with_a_metadata_table_in_turn(
    version: str, kind: str, hudi: Hudi, tmp_path: Path
) -> None:
    turns_with_metadata_table(kind, version, Random(kind + version), hudi, str(tmp_path / "table"))


def turns_with_metadata_table(kind: str, version: str, random: Random, hudi: Hudi, location: str) -> None:
    """Run a random history of Hudi 1.2 and lakehouse on a new table of a version, and compare all readers."""
    history = History(location, kind, {"1.2": (hudi, of_hudi(version, kind))})
    steps = [s for s in STEPS if s != "0.15" and (s != "compaction" or kind == "MERGE_ON_READ")]
    done = [random.choice(("1.2", "ours"))]
    if done[0] == "ours":
        create(location, kind, version)
        history.step("upsert", random)
    else:
        hudi.write(location, batch(["a1", "b1"], 0, "first"), history.options["1.2"], mode="overwrite")
        history.rows = {"a1": "first", "b1": "first"}
    for number in range(TURNS):
        done.append(random.choice(steps))
        history.step(done[-1], random)
        stored = opened(location).scan(["id", "v"]).to_arrow()
        assert values_of(stored) == history.rows, done
        if number % 4 == 3:
            assert rows_of_all(location, version, hudi) == history.rows, done
    opened(location).rollback_failed()
    assert rows_of_all(location, version, hudi) == history.rows, done
    assert opened(location).config.metadata_partitions, done
    assert opened(location).validate(deep=True).corrupt == (), done


def of_hudi(version: str, kind: str) -> dict[str, str]:
    """Return the options of Hudi 1.2 for a table of a version with a metadata table."""
    return {**OF_1_2, "hoodie.write.table.version": version, "hoodie.metadata.enable": "true", TYPE: kind}


def rows_of_all(location: str, version: str, hudi: Hudi) -> dict[str, str]:
    """Assert that Hudi 1.2, with and without its metadata table, and hudi-rs return the rows of lakehouse."""
    ours = values_of(opened(location).scan(["id", "v"]).to_arrow())
    for listed in ("true", "false"):
        assert values_of(hudi.read(location, hoodie__metadata__enable=listed)) == ours, listed
    if version != "8":
        # Hudi 1.2 writes records of version 9 to the metadata table, and hudi-rs refuses slices with both kinds.
        assert values_of(hudi_rs.read(location)) == ours
    return ours


def create(location: str, kind: str, version: str = "6") -> Table:
    """Create a table."""
    named: dict[str, Any] = {"name": "t", "record_key": "id", "partition_by": "p", "ordering": "ts"}
    options = {"hoodie.write.table.version": version} | SORTED
    return Table.create(location, **named, table_type=kind, options=options)


#: Hudi's errors for a write that was overtaken, and for a write to a file group that is being clustered.
OVERTAKEN, CLUSTERED = "HoodieWriteConflictException", "HoodieClusteringUpdateException"
#: Hudi's error for a lock that is held, for example by a process of lakehouse that was killed.
LOCKED = "HoodieLockException"
#: Hudi's error for a write whose own heartbeat was late, on a loaded machine; it ends before its commit.
LATE = "Heartbeat for instant"


def keys_of(writer: str) -> list[str]:
    """Return the keys of a writer; the partitions are those of all writers."""
    return [f"{partition}-{writer}-{number}" for partition in ("a", "b") for number in range(2)]


def pause_of(location: str) -> Path:
    """Return the file that pauses lakehouse: a write of Hudi takes 20 times as long, so it loses again and again."""
    return Path(location).with_name("pause")


def write_until_killed(location: str, journal: str, first: int, more: Mapping[str, str]) -> None:
    """Write as lakehouse until the process is killed; record each committed value in a journal."""
    table = Table.open(location, options={**OURS, **SORTED, **more})
    number = first
    with Path(journal).open("a") as log:
        while True:
            number += 1
            until(lambda: not pause_of(location).exists(), 60)
            log.write(json.dumps({"begins": number}) + "\n")
            log.flush()
            try:
                table.upsert(batch(keys_of("ours"), number, str(number)))
                if number % 4 == 0:
                    table.services.named("clean" if number % 8 else "clustering").run(force=True)
                elif table.refresh().timeline.where(action=(Action.CLUSTERING, Action.REPLACECOMMIT), pending=True):
                    # Hudi refuses writes to these file groups until the clustering is complete.
                    table.services.clustering.run()
            except RetryableError:
                continue
            log.write(json.dumps({"committed": number}) + "\n")
            log.flush()


def hudi_writes(name: str, hudi: Hudi, location: str, options: Mapping[str, str], outcome: dict[str, Any]) -> None:
    """Write as Hudi, and repeat each write after a conflict."""
    try:
        for number in range(1, ROUNDS + 1):
            for _ in range(40):
                try:
                    hudi.write(location, batch(keys_of(name), number, str(number)), options)
                    pause_of(location).unlink(missing_ok=True)
                    break
                except HudiError as error:
                    if CLUSTERED in str(error) or LOCKED in str(error):
                        # Only lakehouse ends them: it runs the clustering again, and takes over its own lock.
                        pause_of(location).unlink(missing_ok=True)
                        time.sleep(0.3)
                    elif OVERTAKEN in str(error) or LATE in str(error):
                        pause_of(location).touch()
                    else:
                        raise
            else:
                raise AssertionError("40 writes ended with a conflict")
    except BaseException as error:
        outcome[name] = error


def race(
    location: str,
    writers: Mapping[str, tuple[Hudi, Mapping[str, str]]],
    random: Random,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Let writers of Hudi and of lakehouse write at once, and kill lakehouse again and again; return its journal.

    `more` are further options of lakehouse. At the end the failed writes are rolled back.
    """
    journal, failed = Path(location).with_name("journal"), dict[str, Any]()
    threads = [
        threading.Thread(target=hudi_writes, args=(name, writer, location, options, failed))
        for name, (writer, options) in writers.items()
    ]
    for thread in threads:
        thread.start()
    kills = 0
    while any(thread.is_alive() for thread in threads):
        begun = len(records(str(journal)))
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=write_until_killed, args=(location, str(journal), begun * 2, dict(more)))
        process.start()
        wanted = begun + random.choice((3, 4, 6))
        until(lambda n=wanted: len(records(str(journal))) >= n or not any(t.is_alive() for t in threads), 120)
        threads[0].join(random.random())
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "lakehouse ended with an error before it was killed"
        kills += 1
    assert failed == {} and kills >= 1
    table = Table.open(location, options=OURS | SORTED | {"hoodie.client.heartbeat.tolerable.misses": "1"})
    until(lambda: not (table.rollback_failed().alive), 120)
    return journal


def assert_last_values(rows: Mapping[str, str], names: Collection[str], journal: Path) -> None:
    """Assert that the last write of each Hudi writer, and one of the last writes of lakehouse, is stored."""
    values = {name: {rows[key] for key in keys_of(name)} for name in ("ours", *names)}
    assert [values[name] for name in names] == [{str(ROUNDS)}] * len(names)
    last = max((r["committed"] for r in records(str(journal)) if "committed" in r), default=0)
    begun = max((r["begins"] for r in records(str(journal)) if "begins" in r), default=0)
    assert len(values["ours"]) == 1 and last <= int(next(iter(values["ours"]))) <= begun


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_is_lost_while_three_writers_write_at_once_and_one_is_killed(
    kind: str, hudi: Hudi, hudi_0_15: Hudi, tmp_path: Path
) -> None:
    race_of_version_6(kind, Random(kind), hudi, hudi_0_15, str(tmp_path / "table"))


def race_of_version_6(kind: str, random: Random, hudi: Hudi, hudi_0_15: Hudi, location: str) -> None:
    """Race both releases of Hudi and lakehouse on a new table of version 6, and compare the rows of all readers."""
    create(location, kind)
    for name in ("ours", "0.15", "1.2"):
        opened(location).upsert(batch(keys_of(name), 0, "0"))
    writers = {
        name: (writer, {**options, **SHARED, TYPE: kind})
        for name, writer, options in (("0.15", hudi_0_15, OF_0_15), ("1.2", hudi, OF_1_2))
    }
    journal = race(location, writers, random)
    rows = read_by_all(location, hudi, hudi_0_15)
    assert_last_values(rows, writers, journal)
    if kind == "MERGE_ON_READ":
        opened(location).services.compaction.run(force=True)
        assert read_by_all(location, hudi, hudi_0_15) == rows
    assert not [i for i in opened(location).timeline if not i.is_completed and i.action is not Action.CLEAN]
    assert opened(location).validate(deep=True).corrupt == ()


@pytest.mark.parametrize("version", ["8", "9"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_row_of_a_version_with_metadata_table_is_lost_while_two_writers_write_and_one_is_killed(
    kind: str, version: str, hudi: Hudi, tmp_path: Path
) -> None:
    race_with_metadata_table(kind, version, Random(kind + version), hudi, str(tmp_path / "table"))


def race_with_metadata_table(kind: str, version: str, random: Random, hudi: Hudi, location: str) -> None:
    """Race Hudi 1.2 and lakehouse on a new table of a version, and compare the rows of all readers."""
    create(location, kind, version)
    for name in ("ours", "1.2"):
        opened(location).upsert(batch(keys_of(name), 0, "0"))
    # Pending writes do not block others in these versions, so heartbeats may expire late.
    late = {"hoodie.client.heartbeat.tolerable.misses": "30"}
    writer = (hudi, {**of_hudi(version, kind), **SHARED, **late})
    journal = race(location, {"1.2": writer}, random, late)
    seen = rows_of_all(location, version, hudi)
    assert_last_values(seen, ("1.2",), journal)
    if kind == "MERGE_ON_READ":
        opened(location).services.compaction.run(force=True)
        assert rows_of_all(location, version, hudi) == seen
    assert opened(location).config.metadata_partitions
    assert not [i for i in opened(location).timeline if not i.is_completed and i.action is not Action.CLEAN]
    assert opened(location).validate(deep=True).corrupt == ()
    opened(location).metadata.rebuild()
    assert rows_of_all(location, version, hudi) == values_of(hudi_rs.read(location)) == seen


def values_of(rows: pa.Table) -> dict[str, str]:
    """Return v by id; each id occurs once."""
    values = dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
    assert len(values) == rows.num_rows
    return values


def records(journal: str) -> list[dict[str, int]]:
    """Return the complete lines of a journal."""
    path = Path(journal)
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
