"""Ingestion of a topic writes each message once, despite crashes, limits and new partitions."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.errors import RetryableError
from lakehouse.platform.sources.source import Source
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.sources.kafka_source import KafkaSourceSpec
from lakehouse.spec.table.table_spec import PartitionField, TableSpec
from tests.support.ingested import BAD, Landing
from tests.support.memory_topic import MemoryTopic, kafka_source

KILLS = 60
KILLS_PER_TABLE = 10
#: A crash is planned at one of the first this many storage steps. Most runs have fewer.
STEPS = 110
MODES = (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER, FaultMode.LOSE_REPLY)


@dataclass
class TopicLanding(Landing):
    """A topic in memory instead of files; a run reads at most `max_messages`."""

    max_messages: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.topic = MemoryTopic("orders", partitions=2)

    @property
    def spec(self) -> TableSpec:
        """The spec of the table and its source."""
        source = KafkaSourceSpec(topic="orders", max_messages=self.max_messages)
        return TableSpec(
            table="t",
            location=self.location,
            record_key=("id",),
            partition_by=(PartitionField(name="p"),),
            ordering=("ts",),
            type=self.table_type,
            schema={"id": "string", "p": "string", "ts": "bigint"},
            ingest=IngestSpec(source=source, operation=self.operation, max_bad_records=10**6),
        )

    def source(self) -> Source[Any]:
        """Return the source of the topic."""
        return kafka_source(self.spec, self.topic)

    def send(self, name: str, rows: int, bad: int) -> None:
        """Write messages."""
        keys, letters = [f"{name}-{n}" for n in range(rows)], [f"{BAD} {name}-{n}" for n in range(bad)]
        for text in [*keys, *letters]:
            self.topic.append(text)
        self.landed.update(keys)
        self.letters.update(letters)


def die_again_and_again(seed: int) -> int:
    """Ingest until KILLS_PER_TABLE runs have crashed, and check the rows after each run; return the crashes."""
    random = Random(seed)
    landing = TopicLanding(
        f"kafka-kills-{seed % 4}",
        operation=random.choice(("insert", "bulk_insert", "upsert")),
        table_type=random.choice(("COPY_ON_WRITE", "MERGE_ON_READ")),
        max_messages=random.choice((0, 3)),
    )
    kills, round = 0, 0
    while kills < KILLS_PER_TABLE:
        round += 1
        if random.random() < 0.7:
            landing.send(f"m{round}", random.randint(1, 5), random.choice((0, 0, 1)))
        if random.random() < 0.1:
            landing.topic.partitions += 1
        storage = FaultyStorage(landing.store, random.randint(1, STEPS), random.choice(MODES))
        with suppress(SimulatedCrash, RetryableError):
            landing.run(storage, run_id=f"run-{round // 3}")
        landing.dead.add(landing.last_pid)
        kills += storage.fail_at is not None and storage.steps >= storage.fail_at
        found = landing.rows()
        assert found <= landing.landed, f"seed {seed}, kill {kills}: written twice: {found - landing.landed}"
    for _ in range(landing.topic.appended + 1):
        if not landing.source().plan(_checkpoint(landing), None, full_refresh=False).units:
            break
        landing.run(run_id="last")
    assert landing.rows() == landing.landed, f"seed {seed}: lost rows: {landing.landed - landing.rows()}"
    assert landing.named_letters() == landing.letters, f"seed {seed}"
    return kills


def _checkpoint(landing: TopicLanding) -> str | None:
    if not landing.store.list_dir(".hoodie")[0]:
        return None
    return landing.table.last_commit_extra("lakehouse.ingest.checkpoint")


def test_messages_are_written_once_despite_many_kills() -> None:
    kills, seed, tables = 0, 0, Counter[int]()
    while kills < KILLS:
        tables[seed] = die_again_and_again(seed)
        kills, seed = kills + tables[seed], seed + 1
    assert len(tables) == KILLS // KILLS_PER_TABLE
