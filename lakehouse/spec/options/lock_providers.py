"""Lock providers: the options of each provider, and their registry.

To add a provider: declare its options here, register it in `LOCK_PROVIDERS`, and add the module
`lakehouse.core.timeline.locks.<name>` with `open_lock(env, options, timing)`. The provider only receives its own
options, and the times that all providers share.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option

PROVIDER_KEY = "hoodie.write.lock.provider"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTiming:
    """Times that apply to every lock provider, in milliseconds."""

    wait_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """Base class for lock provider options."""

    def check(self) -> None:
        """Raise UserError if the provider cannot work with these options; called for the chosen provider only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemLockOptions(LockOptions):
    """Options of the provider `filesystem`: a lock file, compatible with Hudi's FileSystemBasedLockProvider."""

    directory: str = option(
        "hoodie.write.lock.filesystem.path",
        "",
        "Lock filesystem: directory of the lock, in the table or elsewhere; default .hoodie of the table.",
    )
    expire_minutes: int = option(
        "hoodie.write.lock.filesystem.expire",
        0,
        "Lock filesystem: time in minutes after which a lock that a Hudi writer left may be taken over; 0 = never.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcessLockOptions(LockOptions):
    """Options of the provider `in_process`: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLockOptions(LockOptions):
    """Options of the provider `storage`: Hudi's StorageBasedLockProvider, a lease in an object of the table."""

    validity_s: int = option(
        "hoodie.write.lock.storage.validity.timeout.secs",
        300,
        "Lock storage: time in seconds after which another writer may take over a lock that is not renewed.",
    )
    renew_s: int = option(
        "hoodie.write.lock.storage.renew.interval.secs",
        30,
        "Lock storage: seconds between two renewals, at most a tenth of the validity.",
        aliases=("hoodie.write.lock.storage.heartbeat.poll.secs",),
    )

    def check(self) -> None:
        """Raise UserError if the lease is so short that it expires after few missed renewals."""
        if not self.validity_s >= 10 * self.renew_s >= 10:
            raise SettingError(
                f"option hoodie.write.lock.storage.validity.timeout.secs={self.validity_s} must be at least ten "
                f"times hoodie.write.lock.storage.renew.interval.secs={self.renew_s}, which must be at least 1",
                setting="hoodie.write.lock.storage.validity.timeout.secs",
                related=("hoodie.write.lock.storage.renew.interval.secs",),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlAlchemyLockOptions(LockOptions):
    """Options of the provider `sqlalchemy`: a lease in a row of a database."""

    url: str = option(
        "lakehouse.lock.sqlalchemy.url",
        "",
        "Lock sqlalchemy: SQLAlchemy URL of the database (SQLite, PostgreSQL) that holds the row of the lock. Secret: "
        "with a password write ${NAME} of an environment variable, file:/path, or airflow:<connection id>.",
        secret=True,
        host=True,
    )

    def check(self) -> None:
        """Raise UserError if the URL is missing."""
        _require("sqlalchemy", {"lakehouse.lock.sqlalchemy.url": self.url})


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperLockOptions(LockOptions):
    """Options of the provider `zookeeper`: Curator's lock recipe, as Hudi's ZookeeperBasedLockProvider uses it."""

    url: str = option(
        "hoodie.write.lock.zookeeper.url", "", "Lock zookeeper: hosts of the ensemble, comma separated.", host=True
    )
    port: int = option(
        "hoodie.write.lock.zookeeper.port",
        2181,
        "Lock zookeeper: port of the hosts that are given without one. Hudi's writers do not read it and use 2181.",
    )
    base_path: str = option(
        "hoodie.write.lock.zookeeper.base_path", "", "Lock zookeeper: parent node of the locks of all tables."
    )
    lock_key: str = option("hoodie.write.lock.zookeeper.lock_key", "", "Lock zookeeper: name of this table's node.")
    session_ms: int = option(
        "hoodie.write.lock.zookeeper.session_timeout_ms",
        60_000,
        "Lock zookeeper: time in milliseconds without contact after which a session ends and its lock is released.",
    )
    connection_ms: int = option(
        "hoodie.write.lock.zookeeper.connection_timeout_ms",
        15_000,
        "Lock zookeeper: maximum time to wait for a connection, in milliseconds.",
    )

    def check(self) -> None:
        """Raise UserError if hosts, base path or lock key are missing."""
        _require(
            "zookeeper",
            {
                "hoodie.write.lock.zookeeper.url": self.url,
                "hoodie.write.lock.zookeeper.base_path": self.base_path,
                "hoodie.write.lock.zookeeper.lock_key": self.lock_key,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveMetastoreLockOptions(LockOptions):
    """Options of the provider `hivemetastore`: Hudi's HiveMetastoreBasedLockProvider."""

    database: str = option("hoodie.write.lock.hivemetastore.database", "", "Lock hivemetastore: database of the table.")
    table: str = option("hoodie.write.lock.hivemetastore.table", "", "Lock hivemetastore: name of the table.")
    uris: str = option(
        "hoodie.write.lock.hivemetastore.uris",
        "",
        "Lock hivemetastore: thrift://host:port, several comma separated.",
        host=True,
    )

    def check(self) -> None:
        """Raise UserError if database, table or addresses are missing."""
        _require(
            "hivemetastore",
            {
                "hoodie.write.lock.hivemetastore.database": self.database,
                "hoodie.write.lock.hivemetastore.table": self.table,
                "hoodie.write.lock.hivemetastore.uris": self.uris,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockProvider:
    """The description of a lock provider.

    Attributes:
        options: The class of its options.
        hudi_class: The simple name of Hudi's class; empty if Hudi lacks this provider.
        extra: The extra of the package that installs its client; empty if none is needed.
        in_table_storage: Whether the lock uses conditional writes to the storage of the table. across_processes:
            Whether the lock excludes writers in other processes.
    """

    options: type[LockOptions]
    hudi_class: str = ""
    extra: str = ""
    in_table_storage: bool = False
    across_processes: bool = True


#: Lock providers by name, in the order of the documentation.
LOCK_PROVIDERS = {
    "filesystem": LockProvider(
        options=FilesystemLockOptions, hudi_class="FileSystemBasedLockProvider", in_table_storage=True
    ),
    "in_process": LockProvider(
        options=InProcessLockOptions, hudi_class="InProcessLockProvider", across_processes=False
    ),
    "storage": LockProvider(options=StorageLockOptions, hudi_class="StorageBasedLockProvider", in_table_storage=True),
    "sqlalchemy": LockProvider(options=SqlAlchemyLockOptions),
    "zookeeper": LockProvider(options=ZookeeperLockOptions, hudi_class="ZookeeperBasedLockProvider", extra="zookeeper"),
    "hivemetastore": LockProvider(
        options=HiveMetastoreLockOptions, hudi_class="HiveMetastoreBasedLockProvider", extra="hive"
    ),
}


def _require(provider: str, values: dict[str, str]) -> None:
    missing = [key for key, value in values.items() if not value]
    if missing:
        raise SettingError(
            f"option {PROVIDER_KEY}={provider} needs {', '.join(missing)}", setting=missing[0], related=(PROVIDER_KEY,)
        )
