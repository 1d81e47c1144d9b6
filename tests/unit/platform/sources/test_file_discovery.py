"""New files of large landing zones: by ascending names, and by notifications of object stores."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.errors import UserError
from lakehouse.platform.sources.files import file_names
from lakehouse.platform.sources.files.file_checkpoint import Checkpoint, SourceFile
from lakehouse.platform.sources.files.file_discovery import (
    NOTIFICATIONS,
    EventCheckpoint,
    ascending_files,
    notified_files,
)
from lakehouse.platform.sources.files.file_events import ObjectEvent, events_of_file
from lakehouse.platform.sources.files.file_names import name_checkpoint, refuse_names
from lakehouse.platform.sources.files.file_notices import open_notices, topic_notices
from lakehouse.platform.sources.kafka.kafka_topic import OffsetRange
from lakehouse.spark.messages import MESSAGES
from lakehouse.spec.sources.file_source import FileSourceSpec, topic_of
from tests.support.memory_topic import MemoryTopic
from tests.support.s3 import FaultyProxy, S3Server

DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def few_recent_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_names, "RECENT", 3)


def _file(number: int, modified_ms: int) -> SourceFile:
    return SourceFile(url=f"/zone/{number:03d}", path=f"{number:03d}", size_bytes=1, modified_ms=modified_ms)


#: What happens in a zone: files arrive, some of them late, and runs with a limit follow, some of which list all names.
STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 40), max_size=6), st.integers(0, 3), st.booleans()), min_size=1, max_size=12
)


@given(STEPS)
def test_ascending_names_read_every_file_once_or_report_it(steps: list[tuple[list[int], int, bool]]) -> None:
    present: dict[str, SourceFile] = {}
    read: Counter[str] = Counter()
    reported: set[str] = set()
    text, clock = None, 1
    for arriving, limit, lists_all in [*steps, ([], 0, True)]:
        for number in arriving:
            clock += 1
            present.setdefault(f"{number:03d}", _file(number, clock))
        known, _ = name_checkpoint(text, "/zone")
        listed = [file for file in present.values() if lists_all or file.path > known.after]
        new = sorted((file for file in listed if not known.has(file)), key=lambda file: file.path)
        chosen = new[:limit] if limit else new
        late = {file.path for file in listed if known.is_late(file)}
        assert not late & {path for path, count in read.items() if count}, "no file is late that was read"
        reported |= late
        read.update(file.path for file in chosen)
        text = known.next(listed, chosen, lists_all=lists_all).to_json()
    assert set(read.values()) <= {1}
    assert set(read) | reported == set(present)


def test_checkpoint_by_times_goes_on_by_names_and_not_back() -> None:
    files = [_file(number, number) for number in range(5)]
    text = Checkpoint().after(files[:3]).to_json()
    known, earlier = name_checkpoint(text, "/zone")
    assert [file.path for file in files if not known.has(file) and not earlier.has(file)] == ["003", "004"]
    later = known.next(files, files, lists_all=True).to_json()
    assert name_checkpoint(later, "/zone")[0].after == "001"
    assert name_checkpoint(later, "/other")[0].after == ""
    with pytest.raises(UserError, match="table t: its checkpoint was written with ascending_names or notifications"):
        refuse_names(later, "t")


@pytest.mark.s3
def test_runs_list_only_names_after_the_checkpoint_of_an_object_store(
    s3_server: S3Server, s3_proxy: FaultyProxy
) -> None:
    root = f"s3://{s3_server.bucket}/ascending"
    options = s3_server.options | {"fs.s3a.endpoint": s3_proxy.endpoint}
    zone = open_storage(root, s3_server.options)
    for number in range(8):
        zone.put(f"2026/{number:03d}.json", b"{}")
    settings = FileSourceSpec(path=f"{root}/2026/*.json", ascending_names=True)

    def run(checkpoint: str | None, now_ms: int, **more: Any) -> Any:
        s3_proxy.targets.clear()
        return ascending_files(replace(settings, **more), options, checkpoint, full_refresh=False, now_ms=now_ms)[1]

    first = run(None, DAY_MS, max_files=6)
    assert ([file.path for file in first.files], first.left) == ([f"{n:03d}.json" for n in range(6)], 2)
    zone.put("2026/0035.json", b"{}")  # among the newest names
    second = run(first.checkpoint.to_json(), DAY_MS + 1)
    assert [file.path for file in second.files] == ["0035.json", "006.json", "007.json"]
    assert len(s3_proxy.targets) == 1 and "start-after=ascending%2F2026%2F002.json" in s3_proxy.targets[0]
    last = second.checkpoint.to_json()
    assert run(last, DAY_MS + 2).files == ()
    assert len(s3_proxy.targets) == 1, "a run without new files sends one request"


def test_file_below_the_checkpoint_is_reported_by_the_next_listing_of_all_names() -> None:
    zone = MemoryStorage("memory://late-names/zone")
    settings = FileSourceSpec(path="memory://late-names/zone/", ascending_names=True)

    def run(checkpoint: str | None, now_ms: int) -> Any:
        return ascending_files(settings, {}, checkpoint, full_refresh=False, now_ms=now_ms)[1]

    for number in range(8):
        zone.put(f"{number:03d}", b"x")
    text = run(None, DAY_MS).checkpoint.to_json()
    base = zone.find("007").modified_ms  # type: ignore[union-attr]
    while zone.find("0005") is None or zone.find("0005").modified_ms <= zone.find("007").modified_ms:  # type: ignore[union-attr]
        zone.put("0005", b"x")
    zone.put("008", b"x")
    second = run(text, base + 1)
    assert ([file.path for file in second.files], second.warning) == (["008"], "")
    zone.put("009", b"x")
    third = run(second.checkpoint.to_json(), base + DAY_MS)
    assert "1 files arrived after their names were passed and are not read, such as memory://late-na" in third.warning
    assert run(third.checkpoint.to_json(), base + 3 * DAY_MS).warning == "", "a file is reported once"


def s3_event(name: str, key: str) -> dict[str, Any]:
    """Return an event of S3."""
    return {"eventSource": "aws:s3", "eventName": name, "s3": {"bucket": {"name": "zone"}, "object": {"key": key}}}


CREATED = ObjectEvent(bucket="zone", key="in/a b+c é.json", is_deleted=False)
ENCODED = "in/a+b%2Bc+%C3%A9.json"
PLAIN = CREATED.key
URL = "https://account.blob.core.windows.net/zone/in/a%20b%2Bc%20%C3%A9.json"
KINDS: dict[str, Any] = {
    "s3": {"Records": [s3_event("ObjectCreated:Put", ENCODED)]},
    "minio": {"Key": "x", "Records": [s3_event("s3:ObjectCreated:CompleteMultipartUpload", ENCODED)]},
    "sns": {"Type": "Notification", "Message": json.dumps({"Records": [s3_event("ObjectCreated:Put", ENCODED)]})},
    "sqs": [{"body": json.dumps({"Records": [s3_event("ObjectCreated:Copy", ENCODED)]})}],
    "eventbridge": {
        "source": "aws.s3",
        "detail-type": "Object Created",
        "detail": {"bucket": {"name": "zone"}, "object": {"key": PLAIN}},
    },
    "pubsub": {
        "message": {
            "attributes": {"eventType": "OBJECT_FINALIZE", "bucketId": "zone", "objectId": PLAIN},
            "data": "e30=",
        }
    },
    "cloud storage": {"type": "google.cloud.storage.object.v1.finalized", "data": {"bucket": "zone", "name": PLAIN}},
    "event grid": [{"eventType": "Microsoft.Storage.BlobCreated", "subject": "x", "data": {"url": URL}}],
    "azure cloud event": {"type": "Microsoft.Storage.BlobCreated", "data": {"url": URL}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_notifications_of_every_store_name_the_decoded_key(kind: str) -> None:
    assert list(events_of_file(json.dumps(KINDS[kind]).encode())) == [CREATED]


def test_lines_of_notifications_yield_deletes_and_the_start_of_unknown_texts() -> None:
    lines: list[Any] = [
        {"Records": [s3_event("ObjectRemoved:Delete", "a"), s3_event("ObjectCreated:Put", "b")]},
        {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "zone"},
        {"message": {"attributes": {"eventType": "OBJECT_METADATA_UPDATE", "bucketId": "z", "objectId": "c"}}},
        {"what": "else"},
        [1],
    ]
    text = "\n".join([*map(json.dumps, lines), "no json"])
    found = list(events_of_file(gzip.compress(text.encode())))
    assert found == [
        ObjectEvent(bucket="zone", key="a", is_deleted=True),
        ObjectEvent(bucket="zone", key="b", is_deleted=False),
        '{"what": "else"}',
        "[1]",
        "no json",
    ]


def test_notified_files_are_read_once_whatever_the_order_and_number_of_events() -> None:
    events, zone = MemoryStorage("memory://events/in"), MemoryStorage("memory://zone/in")
    settings = FileSourceSpec(path="memory://zone/in/*.json", notifications="memory://events/in/", max_files=2)

    def notify(name: str, *found: dict[str, Any]) -> None:
        events.put(name, json.dumps({"Records": found}).encode())

    def run(checkpoint: str | None) -> Any:
        known = EventCheckpoint.from_json(checkpoint)
        notices = open_notices(settings, {}, {}, known.events)
        return notified_files(settings, {}, known, notices, full_refresh=False)[1]

    for key in ("a b.json", "b.json", "c.json", "other.csv"):
        zone.put(key, b"{}")
    create = "ObjectCreated:Put"
    # The delete of b comes before its creation; gone.json was deleted; the last two are no files of this source.
    notify("1", s3_event(create, "in/a+b.json"), s3_event(create, "in/a+b.json"), s3_event(create, "in/gone.json"))
    notify("2", s3_event("ObjectRemoved:Delete", "in/b.json"), s3_event(create, "in/b.json"))
    notify("3", s3_event(create, "in/c.json"), s3_event(create, "in/other.csv"), s3_event(create, "elsewhere/d.json"))
    first = run(None)
    assert ({file.path for file in first.files}, first.left) == ({"a b.json", "b.json"}, 1)
    counted = {"taken": 2, "events": 5, "repeated": 1, "gone": 1, "deleted": 1, "old": 0}
    assert json.loads(first.metadata[NOTIFICATIONS]) == counted
    assert run(None).checkpoint == first.checkpoint, "a run without commit repeats its plan"
    notify("4", s3_event(create, "in/a+b.json"))
    second = run(first.checkpoint.to_json())
    assert [file.path for file in second.files] == ["c.json"]
    assert json.loads(second.metadata[NOTIFICATIONS]) == {
        "taken": 2, "events": 4, "elsewhere": 2, "repeated": 1, "old": 0
    }  # fmt: skip
    events.put("5", b'{"what": "else"}')
    third = run(second.checkpoint.to_json())
    assert third.files == ()
    assert (
        '1 notifications are of an unknown kind, such as \'{"what": "else"}\' in memory://events/in/5' in third.warning
    )


def test_notifications_of_a_topic_continue_from_their_offsets() -> None:
    topic, zone = MemoryTopic("events", partitions=2), MemoryStorage("memory://topic-zone/in")
    settings = FileSourceSpec(path="memory://topic-zone/in/", notifications="kafka://kafka_eu/events")
    assert (topic_of(settings.notifications), settings.connections) == (("kafka_eu", "events"), ("kafka_eu",))

    def read(ranges: tuple[OffsetRange, ...]) -> list[pa.RecordBatch]:
        rows = []
        for one in ranges:
            texts = topic.messages[one.partition][one.first : one.end]
            for offset, (_, text) in enumerate(texts, one.first):
                rows.append({"partition": one.partition, "offset": offset, "value": text.encode(), "is_end": False})
            # The last offset of the range is a marker of a transaction.
            rows.append({"partition": one.partition, "offset": one.end, "is_end": True})
        return [pa.RecordBatch.from_pylist([row], MESSAGES) for row in rows]

    def notify(key: str, partition: int) -> None:
        event = {**s3_event("ObjectCreated:Put", f"in/{key}")}
        event["s3"]["bucket"]["name"] = "topic-zone"
        topic.append(json.dumps({"Records": [event]}), partition=partition)

    def run(checkpoint: str | None) -> Any:
        known = EventCheckpoint.from_json(checkpoint)
        return notified_files(settings, {}, known, topic_notices(topic, read, known.events), full_refresh=False)[1]

    for key, partition in (("a", 0), ("b", 1), ("gone", 1)):
        notify(key, partition)
    zone.put("a", b"x")
    zone.put("b", b"x")
    first = run(None)
    assert [file.path for file in first.files] == ["a", "b"]
    zone.put("c", b"x")
    for key in ("a", "c"):
        notify(key, 0)
    second = run(first.checkpoint.to_json())
    assert [file.path for file in second.files] == ["c"]
    counted = json.loads(second.metadata[NOTIFICATIONS])
    assert (counted["events"], counted["repeated"]) == (2, 1)
    topic.recreate()
    notify("c", 0)
    third = run(second.checkpoint.to_json())
    assert third.files == () and "created again" in third.warning
