"""Options of the table lock: the provider and its required options."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.core.timeline.table_lock import open_lock, table_lock
from lakehouse.errors import RetryableError, UserError
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.lock_providers import SqlAlchemyLockOptions, StorageLockOptions
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.tables import make_env

KEY = "hoodie.write.lock.provider"
ZOOKEEPER = {
    "hoodie.write.lock.zookeeper.url": "one,two:2182",
    "hoodie.write.lock.zookeeper.base_path": "/locks/",
    "hoodie.write.lock.zookeeper.lock_key": "orders",
}
HIVE = {
    "hoodie.write.lock.hivemetastore.database": "sales",
    "hoodie.write.lock.hivemetastore.table": "orders",
    "hoodie.write.lock.hivemetastore.uris": "thrift://one:9083",
}
DATABASE = {"lakehouse.lock.sqlalchemy.url": "sqlite://"}


@pytest.mark.parametrize(
    ("given", "meant", "needs"),
    [
        ("filesystem", "filesystem", {}),
        ("IN_PROCESS", "in_process", {}),
        ("org.apache.hudi.client.transaction.lock.InProcessLockProvider", "in_process", {}),
        ("org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider", "filesystem", {}),
        ("org.apache.hudi.client.transaction.lock.StorageBasedLockProvider", "storage", {}),
        ("StorageBasedLockProvider", "storage", {}),
        ("sqlalchemy", "sqlalchemy", DATABASE),
        ("org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider", "zookeeper", ZOOKEEPER),
        ("org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider", "hivemetastore", HIVE),
    ],
)
def test_provider_accepts_short_names_and_class_names_of_hudi(given: str, meant: str, needs: dict[str, str]) -> None:
    assert parse_options({KEY: given, **needs}).transaction.lock.provider == meant


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("zokeeper", "zookeeper"),
        ("file_system", "filesystem"),
        ("org.apache.hudi.client.transaction.lock.StorageLockProvider", "StorageBasedLockProvider"),
    ],
)
def test_misspelt_provider_is_refused_with_the_nearest_name(given: str, near: str) -> None:
    with pytest.raises(UserError, match=f"{KEY}='{given}'.*Did you mean '{near}'"):
        parse_options({KEY: given})


@pytest.mark.parametrize("given", ["", "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider"])
def test_unknown_provider_is_refused_with_the_known_names(given: str) -> None:
    with pytest.raises(UserError, match="not one of filesystem, in_process, storage, sqlalchemy, zookeeper"):
        parse_options({KEY: given})


@pytest.mark.parametrize(
    ("name", "needs"), [("sqlalchemy", DATABASE), ("zookeeper", ZOOKEEPER), ("hivemetastore", HIVE)]
)
def test_provider_without_a_required_option_is_refused_with_its_key(name: str, needs: dict[str, str]) -> None:
    for missing in needs:
        given = {key: value for key, value in needs.items() if key != missing}
        with pytest.raises(UserError, match=missing):
            parse_options({KEY: name, **given})


@pytest.mark.parametrize(("validity", "renew"), [("9", "1"), ("29", "3"), ("300", "0"), ("100", "11")])
def test_validity_below_ten_renewals_is_refused(validity: str, renew: str) -> None:
    options = {
        KEY: "storage",
        "hoodie.write.lock.storage.validity.timeout.secs": validity,
        "hoodie.write.lock.storage.renew.interval.secs": renew,
    }
    with pytest.raises(UserError, match="at least ten times"):
        parse_options(options)
    lock = parse_options({**options, KEY: "filesystem"}).transaction.lock
    assert StorageLockOptions(validity_s=int(validity), renew_s=int(renew)) in lock.provider_options


def test_old_key_of_hudi_for_renewals_is_accepted() -> None:
    options = {KEY: "storage", "hoodie.write.lock.storage.heartbeat.poll.secs": "7"}
    lock = open_lock(make_env(), parse_options(options).transaction.lock)
    assert lock.renew_ms == 7_000


@pytest.mark.parametrize(
    ("name", "package", "extra", "needs"),
    [("zookeeper", "kazoo", "zookeeper", ZOOKEEPER), ("hivemetastore", "pymetastore", "hive", HIVE)],
)
def test_provider_without_its_package_names_the_extra(
    name: str, package: str, extra: str, needs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [module for module in sys.modules if module.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, f"lakehouse.core.timeline.locks.{name}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"lakehouse-tables\[{extra}\]"):
        open_lock(make_env(), parse_options({KEY: name, **needs}).transaction.lock)


def test_hosts_without_a_port_get_the_port_option() -> None:
    policy = parse_options({KEY: "zookeeper", **ZOOKEEPER, "hoodie.write.lock.zookeeper.port": "2999"}).transaction
    assert open_lock(make_env(), policy.lock).name == "zookeeper://one:2999,two:2182/locks/orders"


def database(url: str) -> TransactionPolicy:
    """Return the policy of a lock in a database."""
    return TransactionPolicy(lock=LockPolicy.of(SqlAlchemyLockOptions(url=url), wait_ms=100))


def test_password_of_a_database_is_in_no_message() -> None:
    lock = open_lock(make_env(), database("postgresql+psycopg://me:hidden@127.0.0.1:1/none?connect_timeout=2").lock)
    assert "hidden" not in lock.name
    with pytest.raises(RetryableError) as raised:
        lock.try_acquire()
    assert "me:***@127.0.0.1" in str(raised.value)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("url", ["no url", "nosuch://host/db", "mysql+nosuch://host/db"])
def test_invalid_database_url_is_refused_with_the_option(url: str) -> None:
    with pytest.raises(UserError, match=r"lakehouse.lock.sqlalchemy.url"):
        open_lock(make_env(), database(url).lock)


def test_tables_in_one_database_have_separate_locks(tmp_path: Path) -> None:
    policy = database(f"sqlite:///{tmp_path}/locks.db")
    with table_lock(make_env(), policy) as one, table_lock(make_env(), policy) as other:
        one.check()
        other.check()
    with (
        pytest.raises(RetryableError, match="unable to open"),
        table_lock(
            make_env(), replace(policy, lock=policy.lock.with_options(url="sqlite:////no/such/directory/locks.db"))
        ),
    ):
        pass
