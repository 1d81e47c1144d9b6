"""Contract of compare and swap: every store replaces or deletes a file only if its version has not changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CommitStateUnknownError, RetryableError, UnsupportedError, UserError
from tests.support.processes import forked
from tests.support.s3 import FaultyProxy, S3Server

THREADS, ROUNDS = 4, 10
OTHER_TAG = '["other", null]'


def test_replace_if_creates_an_absent_file_and_replaces_only_the_expected_version(each_store: Storage) -> None:
    first = each_store.replace_if("locks/l", b"one", None)
    assert first is not None
    assert each_store.get_tagged("locks/l") == (b"one", first)
    assert each_store.replace_if("locks/l", b"two", None) is None
    second = each_store.replace_if("locks/l", b"two", first)
    assert second not in (None, first)
    assert each_store.get_tagged("locks/l") == (b"two", second)
    assert each_store.replace_if("locks/l", b"three", first) is None
    assert each_store.get("locks/l") == b"two"
    assert [file.path for file in each_store.list("")] == ["locks/l"]


def test_replace_if_refuses_a_deleted_version(each_store: Storage) -> None:
    tag = each_store.replace_if("l", b"one", None)
    each_store.delete("l")
    with pytest.raises(NotFoundError):
        each_store.get_tagged("l")
    assert each_store.replace_if("l", b"two", tag) is None
    assert each_store.list("") == []


def test_delete_if_deletes_only_the_expected_version_or_is_unsupported(
    each_store: Storage,
) -> None:
    old = each_store.replace_if("d/l", b"one", None)
    assert old is not None
    new = each_store.replace_if("d/l", b"two", old)
    assert new is not None
    if each_store.root.startswith("s3://"):
        with pytest.raises(UnsupportedError, match="on a condition"):
            each_store.delete_if("d/l", new)
        return
    assert each_store.delete_if("d/l", old) is False
    assert each_store.get("d/l") == b"two"
    assert each_store.delete_if("d/l", new) is True
    assert each_store.delete_if("d/l", new) is False
    assert each_store.list_dir("") == ([], [])


@pytest.mark.parametrize("path", ["", "/absolute", "a/../b"])
def test_compare_and_swap_refuses_invalid_paths(each_store: Storage, path: str) -> None:
    for verb in (
        lambda: each_store.get_tagged(path),
        lambda: each_store.replace_if(path, b"", None),
        lambda: each_store.replace_if(path, b"", OTHER_TAG),
    ):
        with pytest.raises(UserError, match="storage path"):
            verb()


def count(store: Storage, number: int) -> int:
    """Increment a shared counter ROUNDS times, and return how many attempts failed because of other writers."""
    failures = 0
    for turn in range(ROUNDS):
        while True:
            data, tag = store.get_tagged("counter")
            if store.replace_if("counter", b"%d of %d-%d" % (int(data.split()[0]) + 1, number, turn), tag) is not None:
                break
            failures += 1
    return failures


def test_no_increment_is_lost_among_threads(each_store: Storage) -> None:
    each_store.put("counter", b"0")
    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(lambda number: count(each_store, number), range(THREADS))) >= 0
    counted = int(each_store.get("counter").split()[0])
    # Over a network, a write whose reply was lost may already be replaced when it is read back. It is then repeated.
    assert counted >= THREADS * ROUNDS if each_store.root.startswith("s3://") else counted == THREADS * ROUNDS


def test_no_increment_is_lost_among_processes_on_one_disk(tmp_path: Path) -> None:
    store = LocalStorage(str(tmp_path))
    store.put("counter", b"0")
    processes = forked()
    children = [processes.Process(target=count, args=(store, number)) for number in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 3
    assert int(store.get("counter").split()[0]) == 3 * ROUNDS
    assert [file.path for file in store.list("")] == ["counter"]


def test_exactly_one_of_concurrent_replacements_of_a_version_succeeds(each_store: Storage) -> None:
    for turn in range(5):
        tag = each_store.replace_if(f"l{turn}", b"expired", None)
        barrier = threading.Barrier(THREADS)

        def take_over(
            number: int, turn: int = turn, tag: str | None = tag, barrier: threading.Barrier = barrier
        ) -> bool:
            barrier.wait()
            return each_store.replace_if(f"l{turn}", b"holder %d" % number, tag) is not None

        with ThreadPoolExecutor(THREADS) as pool:
            won = list(pool.map(take_over, range(THREADS)))
        assert won.count(True) == 1
        assert each_store.get(f"l{turn}") == b"holder %d" % won.index(True)


def test_storage_wrappers_pass_the_expected_version_on(each_store: Storage) -> None:
    counting = CountingStorage(FaultyStorage(each_store))
    tag = counting.replace_if("l", b"one", None)
    assert counting.get_tagged("l") == (b"one", tag)
    assert counting.replace_if("l", b"two", OTHER_TAG) is None
    assert counting.counts() == {"LIST": 0, "GET": 1, "PUT": 2, "HEAD": 0, "DELETE": 0}


def proxied(server: S3Server, proxy: FaultyProxy, name: str) -> Storage:
    """Return a store behind the proxy."""
    return open_storage(f"s3://{server.bucket}/{name}", {**server.options, "fs.s3a.endpoint": proxy.endpoint})


def swapped(store: Storage, faults: list[str], proxy: FaultyProxy) -> Callable[[], str | None]:
    """Write a first version, queue the faults, and return the function that replaces it by `two`."""
    tag = store.replace_if("l", b"one", None)
    proxy.faults["PUT"] = list(faults)
    return lambda: store.replace_if("l", b"two", tag)


@pytest.mark.s3
@pytest.mark.parametrize("faults", [["drop-after"], ["503-after"], ["drop"], ["503", "503"], ["409", "drop-after"]])
def test_replace_if_reads_back_after_a_lost_reply(
    s3_server: S3Server, s3_proxy: FaultyProxy, faults: list[str]
) -> None:
    store = proxied(s3_server, s3_proxy, "swap-" + "-".join(faults))
    assert swapped(store, faults, s3_proxy)() == store.get_tagged("l")[1]
    assert store.get("l") == b"two"


@pytest.mark.s3
def test_replace_if_returns_none_after_a_lost_request_if_another_writer_replaced_the_file(
    s3_server: S3Server, s3_proxy: FaultyProxy
) -> None:
    store = proxied(s3_server, s3_proxy, "swap-late")
    tag = store.replace_if("l", b"one", None)
    store.put("l", b"rival")
    s3_proxy.faults["PUT"] = ["drop"]
    assert store.replace_if("l", b"two", tag) is None
    assert store.get("l") == b"rival"


@pytest.mark.s3
def test_replace_if_raises_unknown_state_or_retryable_error_without_an_answer(
    s3_server: S3Server, s3_proxy: FaultyProxy
) -> None:
    store = proxied(s3_server, s3_proxy, "swap-never")
    with pytest.raises(CommitStateUnknownError, match="may take effect later"):
        swapped(store, ["drop"] * 3, s3_proxy)()
    with pytest.raises(RetryableError, match="kept failing"):
        swapped(proxied(s3_server, s3_proxy, "swap-busy"), ["503"] * 3, s3_proxy)()
