"""HDFS beyond the contract of storage: errors, permissions, safe mode, failover, forks and settings."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.storage import hdfs_client
from lakehouse.core.storage.hdfs import HdfsStorage, open_hdfs
from lakehouse.core.storage.hdfs_options import client_settings, parse_hdfs_location
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.doctor.storage_checks import conditional_puts
from lakehouse.spec.contracts.doctor import CheckState
from tests.support.hadoop import Hadoop, hadoop_at

#: Calls that a write does not send.
_OF_DATANODES = ("SendHeartbeat", "BlockReceivedAndDeleted", "BlockReport")


class Impatient:
    """A clock whose pauses take no time."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def monotonic_s(self) -> float:
        """Return the sum of the pauses."""
        return sum(self.pauses)

    def sleep(self, seconds: float) -> None:
        """Record a pause."""
        self.pauses.append(seconds)


def of_user(name: str, monkeypatch: pytest.MonkeyPatch, location: str) -> Storage:
    monkeypatch.setenv("HADOOP_USER_NAME", name)
    return open_storage(location)


def test_missing_permission_is_reported_with_the_user(hdfs: Hadoop, monkeypatch: pytest.MonkeyPatch) -> None:
    location = hdfs.place()
    open_storage(location).put("d/f", b"x")
    stranger = of_user("anna", monkeypatch, location)
    assert stranger.get("d/f") == b"x"
    for refused in (
        lambda: stranger.put("d/g", b"y"),
        lambda: stranger.create("d/g", b"y"),
        lambda: stranger.delete("d/f"),
        lambda: stranger.open_output("d/g"),
        lambda: stranger.replace_if("d/f", b"y", stranger.get_tagged("d/f")[1]),
    ):
        with pytest.raises(UserError, match=r"to the user 'anna'.*HADOOP_USER_NAME"):
            refused()
    hdfs.command(f"chmod {location.removeprefix(hdfs.root)}/d 700")
    with pytest.raises(UserError, match="to the user 'anna'"):
        stranger.list("d")


def test_exceeded_quota_is_reported_as_such(hdfs: Hadoop) -> None:
    location = hdfs.place()
    storage = open_storage(location)
    storage.put("a", b"x")
    hdfs.command(f"quota {location.removeprefix(hdfs.root)} 2 9223372036854775807")
    with pytest.raises(RetryableError, match="quota is exceeded at 'b'"):
        storage.put("b", b"x")
    hdfs.command(f"quota {location.removeprefix(hdfs.root)} 100 1000")
    with pytest.raises(RetryableError, match="quota is exceeded at 'c'"):
        storage.put("c", b"x")
    assert [file.path for file in storage.list("")] == ["a"]


def test_writes_in_safe_mode_are_repeated_and_then_reported(hdfs: Hadoop) -> None:
    settings = client_settings({})
    clock = Impatient()
    storage = HdfsStorage(parse_hdfs_location(hdfs.place(), settings), settings, clock=clock)
    storage.put("a", b"x")
    hdfs.command("safemode enter")
    try:
        assert storage.get("a") == b"x"
        for write in (lambda: storage.put("b", b"y"), lambda: storage.delete("a"), lambda: storage.create("c", b"")):
            with pytest.raises(RetryableError, match="safe mode"):
                write()
        assert len(clock.pauses) == 3 * (hdfs_client.ATTEMPTS - 1)
    finally:
        hdfs.command("safemode leave")
    storage.put("b", b"y")
    assert [file.path for file in storage.list("")] == ["a", "b"]


def test_server_that_does_not_answer_is_reported() -> None:
    storage = open_storage("hdfs://127.0.0.1:1/x", {"dfs.client.failover.max.attempts": "0"})
    for call in (lambda: storage.get("a"), lambda: storage.list(""), lambda: storage.put("a", b"")):
        with pytest.raises(RetryableError, match=r"127.0.0.1:1/x does not answer.*HADOOP_CONF_DIR"):
            call()


def test_missing_library_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    storage = open_storage("hdfs://127.0.0.1:2/x")
    with pytest.raises(UserError, match=r"lakehouse-tables\[hdfs\]"):
        storage.get("a")


@pytest.mark.parametrize(
    ("name", "reason"), [("p=10:30/f", "':'"), ("x" * 256, "255 bytes"), ("語" * 100 + "/f", "255 bytes")]
)
def test_names_that_hdfs_refuses_are_reported_without_a_request(name: str, reason: str) -> None:
    storage = open_storage("hdfs://127.0.0.1:1/x")
    for write in (lambda: storage.put(name, b""), lambda: storage.create(name, b""), lambda: storage.open_output(name)):
        with pytest.raises(UserError, match=reason):
            write()
    with pytest.raises(NotFoundError):
        storage.get(name)
    assert storage.find(name) is None and storage.delete(name) is False


def test_partition_value_with_a_colon_needs_url_encoding(hdfs: Hadoop) -> None:
    rows = pa.table({"id": ["a"], "ts": ["2025-01-01 10:30:00"]})
    plain = Table.create(hdfs.place(), name="t", record_key=["id"], partition_by=["ts"])
    with pytest.raises(UserError, match=r"contains ':'.*partitionpath.urlencode=true"):
        plain.upsert(rows)
    encoded = Table.create(
        hdfs.place(),
        name="t",
        record_key=["id"],
        partition_by=["ts"],
        options={"hoodie.datasource.write.partitionpath.urlencode": "true"},
    )
    encoded.upsert(rows)
    assert encoded.scan(columns=["id", "ts"]).to_arrow().to_pydict() == rows.to_pydict()


def refused_in_child(storage: Storage) -> None:
    with pytest.raises(UserError, match="spawn"):
        storage.get("a")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_is_refused_instead_of_waiting_forever(hdfs: Hadoop) -> None:
    storage = open_storage(hdfs.place())
    storage.put("a", b"x")
    child = multiprocessing.get_context("fork").Process(target=refused_in_child, args=(storage,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert storage.get("a") == b"x"


def test_pickled_store_needs_no_configuration_directory(hdfs: Hadoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
    place = hdfs.place()
    storage = open_storage(f"hdfs://{place.removeprefix(hdfs.root)}")
    assert storage.root == place
    storage.put("a", b"x")
    data = pickle.dumps(storage)
    monkeypatch.delenv("HADOOP_CONF_DIR")
    assert pickle.loads(data).get("a") == b"x"
    with pytest.raises(UserError, match="HADOOP_CONF_DIR: not set"):
        open_storage("hdfs:///a")


def test_doctor_accepts_a_store_on_hdfs(hdfs: Hadoop) -> None:
    storage = open_storage(hdfs.place())
    assert conditional_puts(storage, table="t").state is CheckState.OK
    assert storage.list_dir("") == ([], [])


def test_small_upsert_needs_few_calls_of_the_namenode(hdfs: Hadoop) -> None:
    table = Table.create(hdfs.place(), name="t", record_key=["id"], partition_by=["p"])
    rows = pa.table({"id": list("abcdef"), "p": list("xyzxyz"), "v": range(6)})
    for _ in range(2):
        table.upsert(rows)
    table = Table.open(table.location)
    before = hdfs.calls()
    table.upsert(rows)
    after = hdfs.calls()
    calls = {name: after[name] - before.get(name, 0) for name in after if name not in _OF_DATANODES}
    assert calls["Create"] <= 26, calls
    assert sum(calls.values()) <= 225, calls


def test_synced_file_is_readable(hdfs: Hadoop) -> None:
    storage = open_hdfs(hdfs.place(), {}, fsync=True)
    storage.put("a", b"x")
    with storage.open_output("b") as output:
        output.write(b"yy")
    assert (storage.get("a"), storage.get("b")) == (b"x", b"yy")


def test_table_on_a_nameservice_survives_failover_and_mount_tables_open_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hadoop_at(tmp_path / "hadoop", namenodes=2) as hadoop:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf))
        table = Table.create("hdfs://lake/t", name="t", record_key=["id"])
        table.upsert(pa.table({"id": ["a"], "v": [1]}))
        storage = open_storage("hdfs://lake/t")

        def write(number: int) -> str:
            storage.put(f"others/{number}", b"%d" % number)
            return f"others/{number}"

        with ThreadPoolExecutor(4) as pool:
            written = [pool.submit(write, number) for number in range(24)]
            hadoop.command("stop 0")
            hadoop.command("active 1")
            paths = sorted(future.result() for future in written)
        assert [file.path for file in storage.list("others")] == paths
        table.upsert(pa.table({"id": ["b"], "v": [2]}))
        mounts = {"fs.viewfs.mounttable.all.link./lake": "hdfs://lake/"}
        mounted = Table.open("viewfs://all/lake/t", storage_options=mounts)
        with pytest.raises(UserError, match=r"below no link of the mount table 'all'; its links are /lake"):
            open_storage("viewfs://all/other", mounts)
        assert sorted(mounted.scan(columns=["id"]).to_arrow()["id"].to_pylist()) == ["a", "b"]
