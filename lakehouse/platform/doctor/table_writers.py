"""The settings of a table's writers in one form: of lakehouse by its policies, of Hudi's jobs by their properties.

Defaults are Hudi's, as the bundles of 0.15 and 1.2 compute them. These surprise:

- Optimistic concurrency implies lazy rollbacks: an explicit EAGER is ignored.
- Hudi 0.15 does not know the name `hoodie.clean.failed.writes.policy`, only `hoodie.cleaner.policy.failed.writes`.
- Without `hoodie.compact.inline`, `hoodie.datasource.compaction.async.enable=false` turns inline compaction on. Streams
  compact asynchronously by default, batch jobs do not.
- `hoodie.write.lock.zookeeper.port` is never read: without a port in the URL the port is 2181.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lakehouse.core.format.properties import parse_properties
from lakehouse.core.state.table_config import TableConfig
from lakehouse.errors import LakehouseError, UserError
from lakehouse.model.index_type import INDEX_TYPE, KeyLookup, key_lookup, stored_index_type
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.lock_providers import (
    PROVIDER_KEY,
    FilesystemLockOptions,
    HiveMetastoreLockOptions,
    SqlAlchemyLockOptions,
    StorageLockOptions,
    ZookeeperLockOptions,
)
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.transaction import CONCURRENCY, FAILED_WRITES_KEYS
from lakehouse.spec.secrets import redact_text
from lakehouse.spec.table.bucket_rules import HASH_FIELD, NUM_BUCKETS

LAKEHOUSE = "lakehouse"
SINGLE, NON_BLOCKING = "SINGLE_WRITER", "NON_BLOCKING_CONCURRENCY_CONTROL"
#: Default number of buckets in Hudi's jobs.
_HUDIS_BUCKETS = "256"
_LOCK_KEY = "hoodie.write.lock.zookeeper.lock_key"
_LOCK = "hoodie.write.lock."
_INLINE, _ASYNC = "hoodie.compact.inline", "hoodie.datasource.compaction.async.enable"
_PORT = "hoodie.write.lock.zookeeper.port"
#: Options that turn a service of Hudi's writer on, with their defaults.
_SERVICES: Mapping[str, Mapping[str, bool]] = {
    "clean": {"hoodie.clean.automatic": True},
    "archive": {"hoodie.archive.automatic": True},
    "logcompaction": {"hoodie.log.compaction.inline": False},
    "clustering": {
        "hoodie.clustering.inline": False,
        "hoodie.datasource.clustering.inline.enable": False,
        "hoodie.clustering.async.enabled": False,
        "hoodie.datasource.clustering.async.enable": False,
    },
}
#: Merge settings: a title, and the table properties and writer options that contain it.
MERGE_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "payload class": (
        "hoodie.datasource.write.payload.class",
        "hoodie.compaction.payload.class",
        "hoodie.table.legacy.payload.class",
    ),
    "merge mode": ("hoodie.write.record.merge.mode", "hoodie.record.merge.mode"),
    "merge strategy": ("hoodie.write.record.merge.strategy.id", "hoodie.record.merge.strategy.id"),
    "ordering columns": (
        "hoodie.datasource.write.precombine.field",
        "hoodie.datasource.write.ordering.fields",
        "hoodie.table.ordering.fields",
        "hoodie.table.precombine.field",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """The lock of a writer.

    Attributes:
        provider: Name in `LOCK_PROVIDERS`, or the class of Hudi for one that lakehouse does not have.
        place: Where the lock is kept: two writers with one provider and one place exclude each other.
        problem: Why the lock cannot be used; empty otherwise.
        expire_minutes: Age after which Hudi's file-system lock is taken over; 0 for never.
    """

    provider: str
    place: str = ""
    problem: str = ""
    expire_minutes: int = 0

    @property
    def shown(self) -> str:
        """The provider and the place, without passwords."""
        return redact_text(" ".join(filter(None, (self.provider, self.place))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The settings of one writer.

    Attributes:
        name: `lakehouse`, or the properties file.
        options: The options as given; for lakehouse only the options of the table.
        concurrency: Concurrency mode, upper case.
        lock: The lock; None if no provider is set.
        is_eager: Whether it rolls back pending writes of others.
        services: Services that it runs within its writes.
        is_inferred: Those that run by a default of Hudi; a compaction only if the job is a stream.
        uses_metadata: Whether it maintains a metadata table.
        heartbeat_s: Age in seconds after which it counts the heartbeat of another writer as expired.
        beat_s: Time in seconds between its own heartbeats; 0 for a writer without heartbeats.
        upgrades: Whether it may upgrade the table.
        early: Whether early conflict detection is on.
        lookup: How it finds the file group of a key.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    concurrency: str = SINGLE
    lock: Lock | None = None
    is_eager: bool = True
    services: frozenset[str] = frozenset()
    is_inferred: frozenset[str] = frozenset()
    uses_metadata: bool = True
    heartbeat_s: float = 180.0
    beat_s: float = 0.0
    upgrades: bool = False
    early: bool = False
    lookup: KeyLookup = field(default_factory=lambda: KeyLookup(label="simple", way=()))

    @property
    def is_hudi(self) -> bool:
        """Whether this is a job of Hudi."""
        return self.name != LAKEHOUSE

    @property
    def is_shared(self) -> bool:
        """Whether the concurrency mode allows other writers."""
        return self.concurrency != SINGLE

    def setting(self, names: tuple[str, ...]) -> str:
        """Return the first value that is set among these options; empty if none is."""
        return next((self.options[name].strip() for name in names if self.options.get(name, "").strip()), "")


def our_writer(policies: Policies, config: TableConfig, root: str, services: Collection[str]) -> Writer:
    """Return the settings of lakehouse; `services` are the services that it runs on the table."""
    transaction = policies.transaction
    return Writer(
        name=LAKEHOUSE,
        concurrency=transaction.concurrency,
        lock=_lock_of(transaction.lock, root),
        is_eager=transaction.eager,
        services=frozenset(services),
        heartbeat_s=transaction.heartbeat_lease_ms / 1000,
        beat_s=transaction.heartbeat_interval_ms / 1000,
        early=transaction.early_detection,
        lookup=policies.index.lookup(config.keys.record_key_fields, is_partitioned=config.is_partitioned),
    )


def hudi_writer(name: str, options: Mapping[str, str], config: TableConfig, root: str) -> Writer:
    """Return the settings of a Hudi job with these properties.

    Raises UserError for a number that is none.
    """
    concurrency = (options.get(CONCURRENCY, "").strip() or SINGLE).upper()
    is_shared = concurrency != SINGLE
    policies = [options[key].strip().upper() for key in FAILED_WRITES_KEYS if options.get(key)]
    # Hudi 0.15 ignores the newer name, Hudi 1.2 accepts both.
    is_eager = not is_shared and options.get(FAILED_WRITES_KEYS[1], "").strip().upper() != "LAZY"
    services, inferred = _services(options, config)
    interval = _number(name, options, "hoodie.client.heartbeat.interval_in_ms", 60_000) / 1000
    misses = _number(name, options, "hoodie.client.heartbeat.tolerable.misses", 2)
    lookup = key_lookup(
        # An unset option is "", for which Hudi uses its default SIMPLE.
        stored_index_type({**options, INDEX_TYPE: options.get(INDEX_TYPE, "").strip() or "SIMPLE"}),
        is_partitioned=config.is_partitioned,
        buckets=options.get(NUM_BUCKETS, "").strip() or _HUDIS_BUCKETS,
        columns=_columns(options.get(HASH_FIELD, "")) or config.keys.record_key_fields,
    )
    return Writer(
        name=name,
        options=options,
        concurrency=concurrency,
        lock=_hudis_lock(name, options, config, root),
        is_eager=is_eager,
        services=services,
        is_inferred=inferred,
        uses_metadata=_is_true(options, "hoodie.metadata.enable", True),
        heartbeat_s=interval * misses,
        beat_s=interval if is_shared or "LAZY" in policies else 0.0,
        upgrades=_is_true(options, "hoodie.write.auto.upgrade", True),
        early=_is_true(options, "hoodie.write.concurrency.early.conflict.detection.enable", False),
        lookup=lookup,
    )


def read_writer_properties(path: str) -> dict[str, str]:
    """Return the properties in a Hudi job's file and in the files that it includes.

    Raises UserError if a file cannot be read, or includes itself.
    """
    return _read(Path(path), ())


def _read(path: Path, including: tuple[Path, ...]) -> dict[str, str]:
    if path in including:
        raise UserError(f"--writer-properties {including[0]}: {path} includes itself")
    try:
        stored = parse_properties(path.read_bytes())
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"--writer-properties {path}: the file cannot be read: {reason}. Give the properties file of the job, with "
            "lines key=value"
        ) from error
    included = stored.pop("include", "").strip()
    above = _read(path.parent / included, (*including, path)) if included else {}
    return {**above, **stored}


def _services(options: Mapping[str, str], config: TableConfig) -> tuple[frozenset[str], frozenset[str]]:
    """Return the services that a Hudi job runs, and which of these run by a default."""
    running, inferred = set(), set()
    for service, names in _SERVICES.items():
        if service == "logcompaction" and not config.is_merge_on_read:
            continue
        for name, default in names.items():
            if _is_true(options, name, default):
                running.add(service)
                if not options.get(name, "").strip():
                    inferred.add(service)
    if config.is_merge_on_read:
        is_async = _is_true(options, _ASYNC, True)
        if _is_true(options, _INLINE, not is_async):
            running.add("compaction")
        elif is_async:
            running.add("compaction")
            inferred.add("compaction")
    return frozenset(running), frozenset(inferred)


def _hudis_lock(name: str, options: Mapping[str, str], config: TableConfig, root: str) -> Lock | None:
    provider = options.get(PROVIDER_KEY, "").strip()
    if not provider:
        return None
    locks = {key: value for key, value in options.items() if key.startswith(_LOCK)}
    if options.get(_LOCK_KEY, "").strip() == "":
        locks[_LOCK_KEY] = options.get("hoodie.table.name", "").strip() or config.name
    locks.pop(_PORT, None)
    try:
        # Only the lock is compared, so other options of the job need not be known here.
        policy = Policies().override(locks).transaction.lock
    except LakehouseError as error:
        return Lock(provider=provider.rpartition(".")[2], problem=f"{name}: {error.message}")
    return _lock_of(policy, root)


def _lock_of(policy: LockPolicy, root: str) -> Lock:
    options = policy.options
    place, expire = "", 0
    if isinstance(options, FilesystemLockOptions):
        directory = options.directory.removeprefix("file://").removeprefix("file:") or ".hoodie"
        inside = "://" in directory or os.path.isabs(directory)
        place = (directory if inside else f"{root}/{directory}").rstrip("/")
        expire = options.expire_minutes
    elif isinstance(options, StorageLockOptions):
        place = f"{root}/.hoodie/.locks"
    elif isinstance(options, ZookeeperLockOptions):
        hosts = [host.strip() for host in options.url.split(",") if host.strip()]
        addresses = sorted(host if ":" in host else f"{host}:{options.port}" for host in hosts)
        place = f"{','.join(addresses)}/{options.base_path.strip('/')}/{options.lock_key.strip('/')}"
    elif isinstance(options, HiveMetastoreLockOptions):
        uris = ",".join(sorted(uri.strip() for uri in options.uris.split(",")))
        place = f"{uris} {options.database.lower()}.{options.table.lower()}"
    elif isinstance(options, SqlAlchemyLockOptions):
        place = options.url
    return Lock(provider=policy.provider, place=place, expire_minutes=expire)


def _columns(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _is_true(options: Mapping[str, str], name: str, default: bool) -> bool:
    return (options.get(name, "").strip() or str(default)).lower() == "true"


def _number(writer: str, options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, "").strip() or str(default)
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{writer}: {name}={text!r} is not a number", option=name)
    return int(text)
