"""Compare-and-swap on HDFS under concurrent, killed and suspended processes."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakehouse.core.storage import hdfs_swap
from lakehouse.core.storage.hdfs import HdfsStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from tests.support.hadoop import Hadoop
from tests.support.processes import forked
from tests.support.waiting import until

PROCESSES, KILLS, INCREMENTS = 8, 6, 40


def opened(hdfs: Hadoop) -> HdfsStorage:
    storage = open_storage(hdfs.place())
    assert isinstance(storage, HdfsStorage)
    return storage


def count_up(storage: Storage, acknowledged: Path, stop: Path) -> None:
    """Increment the counter until `stop` exists; `acknowledged` gets one byte for each swap that succeeded."""
    turn = 0
    with open(acknowledged, "ab", buffering=0) as file:
        while not stop.exists():
            data, tag = storage.get_tagged("d/counter")
            turn += 1
            number = int(data.split()[0]) + 1
            if storage.replace_if("d/counter", b"%d of %d-%d" % (number, os.getpid(), turn), tag) is not None:
                file.write(b"x")


def test_killed_processes_lose_no_swap_of_others(hdfs: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_swap, "PATIENCE_S", 0.5)
    storage, stop, processes = opened(hdfs), tmp_path / "stop", forked()
    storage.put("d/counter", b"0")
    running, numbers = [], iter(range(1000))

    def start() -> None:
        child = processes.Process(target=count_up, args=(storage, tmp_path / f"ack-{next(numbers)}", stop))
        child.start()
        running.append(child)

    def acknowledged() -> int:
        return sum(file.stat().st_size for file in tmp_path.glob("ack-*"))

    for _ in range(PROCESSES):
        start()
    for kill in range(KILLS):
        wanted = INCREMENTS * (kill + 1) // (KILLS + 1)
        assert until(lambda wanted=wanted: acknowledged() >= wanted, 120)
        victim = running.pop(0)
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        start()
    assert until(lambda: acknowledged() >= INCREMENTS, 120)
    stop.touch()
    for child in running:
        child.join()
    assert [child.exitcode for child in running] == [0] * PROCESSES
    counted = int(storage.get("d/counter").split()[0])
    # A process may be killed after its swap and before its acknowledgement.
    assert acknowledged() <= counted <= acknowledged() + KILLS


class Suspended:
    """A store whose reads wait until `resume`, for a process that is suspended after its comparison began."""

    def __init__(self, storage: HdfsStorage) -> None:
        self._storage, self.resume, self.reads = storage, threading.Event(), 0
        self.root = storage.root

    def get(self, path: str) -> bytes:
        """Read, then wait."""
        data = self._storage.get(path)
        self.reads += 1
        assert self.resume.wait(120)
        return data


@pytest.mark.parametrize("verb", ["replace", "delete", "create"])
def test_suspended_process_changes_nothing_after_its_claim_was_broken(
    hdfs: Hadoop, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(hdfs_swap, "PATIENCE_S", 0.1)
    storage = opened(hdfs)
    tag = storage.replace_if("d/l", b"one", None)
    assert tag is not None
    suspended = Suspended(storage)
    claims = hdfs_swap.Claims(suspended, storage._client, storage._base, "d/l", storage._clock, storage._ids)
    stale = {
        "replace": lambda: claims.replace(b"stale", tag),
        "delete": lambda: claims.delete(tag),
        "create": lambda: claims.create("d/instant", b"stale", tag),
    }[verb]
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(stale)
        assert until(lambda: suspended.reads == 1)
        assert storage.replace_if("d/l", b"two", tag) is not None
        suspended.resume.set()
        assert not outcome.result()
    assert storage.get("d/l") == b"two"
    assert [file.path for file in storage.list("")] == ["d/l"]


def test_guarded_create_needs_the_expected_version_of_its_guard(hdfs: Hadoop) -> None:
    storage = opened(hdfs)
    tag = storage.replace_if("lock", b"holder", None)
    assert tag is not None
    assert storage.create_guarded("t/1.commit", b"first", "lock", tag) is True
    assert storage.create_guarded("t/1.commit", b"second", "lock", tag) is False
    assert storage.create_guarded("t/2.commit", b"third", "lock", "other") is None
    assert storage.create_guarded("t/2.commit", b"third", "none", tag) is None
    assert [file.path for file in storage.list("")] == ["lock", "t/1.commit"]
    assert storage.get("t/1.commit") == b"first"


def test_next_swap_deletes_the_unclaimed_bytes_of_a_killed_process(
    hdfs: Hadoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_swap, "_UNCLAIMED_MS", -60_000)
    storage = opened(hdfs)
    tag = storage.replace_if("l", b"one", None)
    storage.put(".l.swap.tmp/.killed.tmp/.killed.tmp", b"unclaimed")
    assert storage.replace_if("l", b"two", tag) is not None
    assert [file.path for file in storage.list("")] == ["l"]
