"""Options of the table lock: which provider keeps it, and what that one needs."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import UserError, nearest
from lakehouse.spec.option import option

_PROVIDER = "hoodie.write.lock.provider"
#: Our short names of lock providers, and what Hudi calls the class.
PROVIDERS = {
    "filesystem": "FileSystemBasedLockProvider",
    "in_process": "InProcessLockProvider",
    "storage": "StorageBasedLockProvider",
    "sqlalchemy": "",
    "zookeeper": "ZookeeperBasedLockProvider",
    "hivemetastore": "HiveMetastoreBasedLockProvider",
}
#: What a provider cannot do without: field and key.
_NEEDED = {
    "sqlalchemy": {"lock_database_url": "lakehouse.lock.sqlalchemy.url"},
    "zookeeper": {
        "zookeeper_url": "hoodie.write.lock.zookeeper.url",
        "zookeeper_base_path": "hoodie.write.lock.zookeeper.base_path",
        "zookeeper_lock_key": "hoodie.write.lock.zookeeper.lock_key",
    },
    "hivemetastore": {
        "hive_database": "hoodie.write.lock.hivemetastore.database",
        "hive_table": "hoodie.write.lock.hivemetastore.table",
        "hive_uris": "hoodie.write.lock.hivemetastore.uris",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPolicy:
    """Who keeps the table lock, how long a writer waits for it, and when that of a dead one may be taken."""

    lock_provider: str = option(
        _PROVIDER,
        "filesystem",
        f"What excludes other writers while a write commits: {', '.join(PROVIDERS)}, or Hudi's name of its class.",
    )
    lock_wait_ms: int = option(
        "hoodie.write.lock.wait_time_ms", 60_000, "Longest wait for the table lock, in milliseconds."
    )
    lock_lease_ms: int = option(
        "lakehouse.lock.lease_ms",
        60_000,
        "Time after which the lock of a writer that died may be taken, in milliseconds; a living one renews it.",
    )
    lock_directory: str = option(
        "hoodie.write.lock.filesystem.path",
        "",
        "Lock filesystem: directory of the lock, in the table or elsewhere; default .hoodie of the table.",
    )
    lock_expire_minutes: int = option(
        "hoodie.write.lock.filesystem.expire",
        0,
        "Lock filesystem: minutes after which a lock that Hudi left may be taken; 0 = never.",
    )
    lock_validity_s: int = option(
        "hoodie.write.lock.storage.validity.timeout.secs",
        300,
        "Lock storage: seconds after which the lock of a writer that died may be taken.",
    )
    lock_renew_s: int = option(
        "hoodie.write.lock.storage.renew.interval.secs",
        30,
        "Lock storage: seconds between two renewals, at most a tenth of the validity.",
        aliases=("hoodie.write.lock.storage.heartbeat.poll.secs",),
    )
    lock_database_url: str = option(
        "lakehouse.lock.sqlalchemy.url",
        "",
        "Lock sqlalchemy: SQLAlchemy URL of the database (SQLite, PostgreSQL) that holds the row of the lock. Secret: "
        "with a password write ${NAME} of an environment variable, file:/path, or airflow:<connection id>.",
        secret=True,
    )
    zookeeper_url: str = option(
        "hoodie.write.lock.zookeeper.url", "", "Lock zookeeper: hosts of the ensemble, comma separated."
    )
    zookeeper_port: int = option(
        "hoodie.write.lock.zookeeper.port", 2181, "Lock zookeeper: port of those hosts that name none."
    )
    zookeeper_base_path: str = option(
        "hoodie.write.lock.zookeeper.base_path", "", "Lock zookeeper: node below which the locks of tables are."
    )
    zookeeper_lock_key: str = option(
        "hoodie.write.lock.zookeeper.lock_key", "", "Lock zookeeper: name of this table's node there."
    )
    zookeeper_session_ms: int = option(
        "hoodie.write.lock.zookeeper.session_timeout_ms",
        60_000,
        "Lock zookeeper: time without a sign of life after which the lock of a writer is taken from it.",
    )
    zookeeper_connection_ms: int = option(
        "hoodie.write.lock.zookeeper.connection_timeout_ms", 15_000, "Lock zookeeper: longest wait for a connection."
    )
    hive_database: str = option(
        "hoodie.write.lock.hivemetastore.database", "", "Lock hivemetastore: database of the table."
    )
    hive_table: str = option("hoodie.write.lock.hivemetastore.table", "", "Lock hivemetastore: name of the table.")
    hive_uris: str = option(
        "hoodie.write.lock.hivemetastore.uris", "", "Lock hivemetastore: thrift://host:port, several comma separated."
    )

    def __post_init__(self) -> None:
        """Bring Hudi's class names to our short ones; raise UserError for what no lock can be kept with."""
        name = _provider(self.lock_provider)
        object.__setattr__(self, "lock_provider", name)
        missing = [key for field, key in _NEEDED.get(name, {}).items() if not getattr(self, field)]
        if missing:
            raise UserError(f"option {_PROVIDER}={name} needs {', '.join(missing)}", option=missing[0])
        if name == "storage" and not (self.lock_validity_s >= 10 * self.lock_renew_s >= 10):
            raise UserError(
                f"option hoodie.write.lock.storage.validity.timeout.secs={self.lock_validity_s} must be at least ten "
                f"times hoodie.write.lock.storage.renew.interval.secs={self.lock_renew_s}, which must be at least 1"
            )


def _provider(given: str) -> str:
    plain = given.strip().rpartition(".")[2]
    for name, hudis in PROVIDERS.items():
        if plain.lower() in (name, hudis.lower()) and plain:
            return name
    known = [*PROVIDERS, *filter(None, PROVIDERS.values())]
    raise UserError(
        f"option {_PROVIDER}={given!r} is none of {', '.join(PROVIDERS)}, nor what Hudi calls one of them."
        f"{nearest(plain, known)}",
        option=_PROVIDER,
    )
