"""Checks of `lakehouse doctor table`: pure functions from the facts about a table and its writers to findings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lakehouse.core.layout.registry import NEWEST, is_newer
from lakehouse.core.state.table_config import TableConfig
from lakehouse.model.display import some
from lakehouse.platform.doctor.table_writers import LAKEHOUSE, MERGE_SETTINGS, NON_BLOCKING, Lock, Writer
from lakehouse.spec.contracts.table_doctor import Risk, TableFinding
from lakehouse.spec.options.lock_providers import LOCK_PROVIDERS
from lakehouse.spec.options.transaction import CONCURRENCY

_SHARED_MODE = f"{CONCURRENCY}=optimistic_concurrency_control"
_TARGET = "hoodie.write.table.version"
#: Storages on which Hudi's file-system lock works, and object stores for which Hudi has a storage lock.
_FILE_SYSTEMS, _STORES = ("/", "hdfs://", "viewfs://", "memory://"), ("s3://", "s3a://", "gs://")
_AHEAD_S = 60.0
#: How a service of Hudi's writer is turned off, and why two programs must not run it.
_OFF: Mapping[str, tuple[str, str]] = {
    "clean": (
        "hoodie.clean.automatic=false",
        "each deletes versions by its own retention, so the shorter one decides: readers, incremental jobs and "
        "restores that rely on the longer one lose their files",
    ),
    "archive": (
        "hoodie.archive.automatic=false",
        "each moves instants by its own limits, so instants disappear that the other still needs, such as the "
        "checkpoints of ingestions",
    ),
    "compaction": (
        "hoodie.compact.inline=false and hoodie.datasource.compaction.async.enable=false",
        "Hudi's writer executes every pending plan: it rolls back the running attempt of the other program and deletes "
        "the files of that attempt",
    ),
    "logcompaction": (
        "hoodie.log.compaction.inline=false",
        "both merge the same log files, and one rolls back the attempt of the other",
    ),
    "clustering": (
        "hoodie.clustering.inline=false and hoodie.clustering.async.enabled=false",
        "Hudi's writer executes every pending plan: it rolls back the running attempt of the other program and deletes "
        "the files of that attempt",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """The input of the checks.

    Attributes:
        config: The properties of the table.
        root: Path or URL of the table.
        name: The name with which commands address the table.
        ours: The settings of lakehouse.
        hudis: The settings of Hudi's jobs.
        is_registered: Whether a catalog contains the table with its services. Otherwise all services could run.
        failed: Pending writes without a valid heartbeat.
        ahead_s: Seconds by which the newest instant is ahead of this host's clock; 0 if it is not.
        recorded_lock: The lock in `.hoodie/shared_lock.json`; None if no lock is recorded.
        buckets: Bucket numbers in the names of the newest files; empty if the files have other names.
    """

    config: TableConfig
    root: str
    name: str
    ours: Writer
    hudis: tuple[Writer, ...] = ()
    is_registered: bool = True
    failed: tuple[str, ...] = ()
    ahead_s: float = 0.0
    recorded_lock: str | None = None
    buckets: tuple[int, ...] = ()

    @property
    def writers(self) -> tuple[Writer, ...]:
        """All writers, or none if only lakehouse is known: one writer is always safe."""
        return (self.ours, *self.hudis) if self.hudis else ()


def check_concurrency(facts: TableFacts) -> Iterator[TableFinding]:
    """Each of several writers expects other writers, and none uses a mode that the version does not have."""
    alone = tuple(writer.name for writer in facts.writers if not writer.is_shared)
    ours = LAKEHOUSE in alone
    if alone:
        yield TableFinding(
            check="concurrency",
            risk=Risk.UNSAFE,
            writers=alone,
            problem=f"{CONCURRENCY} is SINGLE_WRITER, the default",
            consequence="such a writer commits without the lock and without a check for conflicts, so of two commits "
            "that change one file group the rows of one are lost",
            advice=f"set {_SHARED_MODE} for {_named(alone)}"
            + ("; for lakehouse in the options of the spec, or by `lakehouse table register --option`" if ours else ""),
        )
    modes = {writer.concurrency for writer in facts.writers if writer.is_shared}
    non_blocking = tuple(writer.name for writer in facts.writers if writer.concurrency == NON_BLOCKING)
    if non_blocking and not facts.config.layout.has_completion_times:
        yield TableFinding(
            check="concurrency",
            risk=Risk.UNSAFE,
            writers=non_blocking,
            problem=f"{CONCURRENCY}={NON_BLOCKING} on a table of version {facts.config.version}",
            consequence="the version has no completion times, so a compaction cannot see which log files were written "
            "after its plan, and drops their rows",
            advice=f"set {_SHARED_MODE}, or upgrade the table: `lakehouse table upgrade --table {facts.name} "
            "--dry-run`",
        )
    elif len(modes) > 1:
        yield TableFinding(
            check="concurrency",
            risk=Risk.WARNING,
            writers=tuple(writer.name for writer in facts.writers),
            problem=f"the writers use different modes: {', '.join(sorted(modes))}",
            consequence="an optimistic writer aborts at conflicts that the others ignore, and may never commit",
            advice=f"set one {CONCURRENCY} for all writers",
        )


def check_lock(facts: TableFacts) -> Iterator[TableFinding]:
    """All writers use one lock, which excludes processes on all hosts."""
    missing = tuple(writer.name for writer in facts.writers if writer.lock is None)
    if missing:
        yield TableFinding(
            check="lock",
            risk=Risk.UNSAFE,
            writers=missing,
            problem="hoodie.write.lock.provider is not set",
            consequence="it does not exclude the other writers: two of them commit at the same time, and the rows of "
            "one are lost",
            advice=_lock_advice(facts),
        )
    locks = [(writer, writer.lock) for writer in facts.writers if writer.lock is not None]
    for writer, lock in locks:
        yield from _lock_of(facts, writer, lock)
    groups: dict[tuple[str, str], list[str]] = {}
    for writer, lock in locks:
        groups.setdefault((lock.provider, lock.place), []).append(writer.name)
    if len(groups) > 1:
        shown = "; ".join(
            f"{_named(names)}: {next(lock.shown for writer, lock in locks if writer.name == names[0])}"
            for names in groups.values()
        )
        yield TableFinding(
            check="lock",
            risk=Risk.UNSAFE,
            writers=tuple(writer.name for writer, _ in locks),
            problem=f"the writers use different locks: {shown}",
            consequence="these locks do not exclude each other: two writers commit at the same time, and the rows "
            "of one are lost",
            advice=_lock_advice(facts),
        )
    recorded, ours = facts.recorded_lock, facts.ours.lock
    if recorded is not None and ours is not None and recorded.split(" ", 1)[0] != ours.provider:
        yield TableFinding(
            check="lock",
            risk=Risk.WARNING,
            writers=(LAKEHOUSE,),
            problem=f"earlier writers of lakehouse used the lock {recorded!r}, now it is {ours.shown!r}",
            consequence="lakehouse refuses to write, because the earlier writers may still run",
            advice="stop all writers and services, wait for a minute, and delete "
            f"{facts.root}/.hoodie/shared_lock.json",
        )


def _lock_of(facts: TableFacts, writer: Writer, lock: Lock) -> Iterator[TableFinding]:
    """Yield the problems of one writer's lock."""
    registered = LOCK_PROVIDERS.get(lock.provider)
    problem, consequence, risk = "", "", Risk.UNSAFE
    if registered is None:
        problem = lock.problem or f"lakehouse does not have the lock provider {lock.provider}"
        consequence = "lakehouse cannot take this lock, so it does not exclude this writer"
    elif not registered.across_processes:
        problem = "the lock is in the memory of one process (InProcessLockProvider)"
        consequence = "it excludes the threads of that process only, so two jobs commit at the same time"
    elif lock.provider == "filesystem" and writer.is_hudi and not facts.root.startswith(_FILE_SYSTEMS):
        problem = f"FileSystemBasedLockProvider on {facts.root.partition('://')[0]}"
        consequence = "Hudi creates its lock file without a condition there, so two writers can hold it"
    elif lock.provider == "filesystem" and writer.is_hudi and lock.expire_minutes:
        problem = f"hoodie.write.lock.filesystem.expire={lock.expire_minutes}: Hudi does not renew its lock"
        consequence = "a commit that takes longer loses the lock, and a second writer commits meanwhile"
        risk = Risk.WARNING
    elif lock.provider == "storage" and writer.is_hudi and not facts.root.startswith(_STORES):
        problem = f"StorageBasedLockProvider at {facts.root}"
        consequence = "Hudi has this lock for S3 and GCS only, from 1.1 on, so its job fails"
        risk = Risk.WARNING
    if problem:
        advice = "set hoodie.write.lock.filesystem.expire=0" if lock.expire_minutes else _lock_advice(facts)
        yield TableFinding(
            check="lock",
            risk=risk,
            writers=(writer.name,),
            problem=problem,
            consequence=consequence,
            advice=advice,
        )


def _lock_advice(facts: TableFacts) -> str:
    hive = "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider"
    if facts.root.startswith(_FILE_SYSTEMS):
        return (
            "give all writers one lock: hoodie.write.lock.provider=org.apache.hudi.client.transaction.lock."
            f"FileSystemBasedLockProvider, or ZookeeperBasedLockProvider of the same package or {hive} with equal "
            "options; lakehouse takes the same names"
        )
    return (
        "give all writers one lock: hoodie.write.lock.provider=org.apache.hudi.client.transaction.lock."
        f"ZookeeperBasedLockProvider or {hive} with equal options, or StorageBasedLockProvider of the former package "
        "if all jobs of Hudi have release 1.1 or newer; lakehouse takes the same names"
    )


def check_failed_writes(facts: TableFacts) -> Iterator[TableFinding]:
    """No writer rolls back the pending writes of others before their heartbeats expire."""
    for writer in facts.writers:
        if not writer.is_eager:
            continue
        lazy = "LAZY" in writer.setting(("hoodie.clean.failed.writes.policy",)).upper()
        yield TableFinding(
            check="failed_writes",
            risk=Risk.UNSAFE,
            writers=(writer.name,),
            problem="hoodie.clean.failed.writes.policy=LAZY is a name that Hudi 0.15 ignores; its policy is EAGER"
            if lazy
            else "failed writes are rolled back eagerly (hoodie.cleaner.policy.failed.writes=EAGER, the default)",
            consequence="its next write deletes the files of every pending write, even of a running one; and its own "
            "writes have no heartbeat, so other writers roll them back",
            advice=f"set {_SHARED_MODE}, which makes it lazy, or hoodie.cleaner.policy.failed.writes=LAZY (the name "
            "that Hudi 0.15 and 1.x know)",
        )


def check_heartbeats(facts: TableFacts) -> Iterator[TableFinding]:
    """No writer takes the heartbeat of another for expired between two beats."""
    for judge, writer in itertools.permutations(facts.writers, 2):
        if 0 < judge.heartbeat_s <= writer.beat_s:
            yield TableFinding(
                check="heartbeats",
                risk=Risk.UNSAFE,
                writers=(judge.name, writer.name),
                problem=f"{judge.name} counts a heartbeat as expired after {judge.heartbeat_s:g} s, but {writer.name} "
                f"writes one every {writer.beat_s:g} s",
                consequence="a write that is running is rolled back, and its files are deleted",
                advice="set the same hoodie.client.heartbeat.interval_in_ms and "
                "hoodie.client.heartbeat.tolerable.misses for all writers",
            )


def check_services(facts: TableFacts) -> Iterator[TableFinding]:
    """Each service runs in one program."""
    for service, (option, consequence) in _OFF.items():
        running = tuple(writer.name for writer in facts.hudis if service in writer.services)
        inferred = all(service in writer.is_inferred for writer in facts.hudis if service in writer.services)
        if not running or (service not in facts.ours.services and len(running) == 1):
            continue
        ours = service in facts.ours.services
        is_stream = inferred and service == "compaction"
        default = " by default, if it is a stream" if is_stream else ", by default" if inferred else ""
        yield TableFinding(
            check="services",
            risk=Risk.UNSAFE if ours and facts.is_registered and not is_stream else Risk.WARNING,
            writers=(*running, LAKEHOUSE) if ours else running,
            problem=f"{service} runs in {_named(running)}{default}" + (", and here" if ours else ""),
            consequence=consequence,
            advice=f"set {option} in {_named(running)}"
            + (
                f", or `lakehouse policy set --table {facts.name} --service {service} --set enabled=false`"
                if ours
                else ""
            ),
        )


def check_metadata(facts: TableFacts) -> Iterator[TableFinding]:
    """All writers maintain the metadata table, or none does."""
    off = tuple(writer.name for writer in facts.hudis if not writer.uses_metadata)
    using = tuple(writer.name for writer in facts.hudis if writer.uses_metadata)
    exists = bool(facts.config.metadata_partitions)
    if off and (exists or using):
        yield TableFinding(
            check="metadata",
            risk=Risk.UNSAFE,
            writers=(*off, *using),
            problem=f"hoodie.metadata.enable=false in {_named(off)}, but "
            + ("the table has a metadata table" if exists else f"{_named(using)} builds one"),
            consequence="one deletes the metadata table while others write to it or read listings from it, so "
            "committed files can be missing in listings and index look-ups",
            advice="set the same hoodie.metadata.enable in all writers",
        )


def check_version(facts: TableFacts) -> Iterator[TableFinding]:
    """No writer upgrades the table while others write."""
    version = str(facts.config.version)
    for writer in facts.hudis:
        target = writer.setting((_TARGET,))
        if (target == version) or (not target and not is_newer(NEWEST, facts.config.layout)):
            continue
        if writer.upgrades:
            yield TableFinding(
                check="version",
                risk=Risk.UNSAFE,
                writers=(writer.name,),
                problem=f"hoodie.write.auto.upgrade is true{'' if target else ', the default'}, and {_TARGET} is "
                f"{target or 'not set'}",
                consequence=f"the next write of Hudi 1.x upgrades the table from version {version}. Jobs of Hudi that "
                "run meanwhile commit to the old timeline, where no reader looks; older releases cannot open the table",
                advice=f"set hoodie.write.auto.upgrade=false and {_TARGET}={version}",
            )
        elif target:
            yield TableFinding(
                check="version",
                risk=Risk.WARNING,
                writers=(writer.name,),
                problem=f"{_TARGET}={target}, but the table has version {version}",
                consequence="Hudi refuses to write",
                advice=f"set {_TARGET}={version}",
            )


def check_merge(facts: TableFacts) -> Iterator[TableFinding]:
    """All writers merge the versions of a row by the same rule."""
    for title, names in MERGE_SETTINGS.items():
        stored = Writer(name="the table", options=facts.config.raw)
        values = {writer.name: _plain(writer.setting(names)) for writer in (stored, *facts.hudis)}
        given = {name: value for name, value in values.items() if value}
        if len({value.lower() for value in given.values()}) > 1:
            yield TableFinding(
                check="merge",
                risk=Risk.UNSAFE,
                writers=tuple(name for name in given if name != stored.name),
                problem=f"different {title}: " + ", ".join(f"{name} {value}" for name, value in given.items()),
                consequence="writers and compactions keep different versions of one row, so which one survives depends "
                "on the program that merges last",
                advice=f"set the value of the table in all jobs, or leave the option out ({names[0]})",
            )


def check_index(facts: TableFacts) -> Iterator[TableFinding]:
    """All writers find the file group of a key in the same way."""
    types = {writer.name: writer.lookup.label for writer in facts.writers}
    ways = {writer.lookup.way for writer in facts.writers}
    if len(ways) > 1:
        yield TableFinding(
            check="index",
            risk=Risk.UNSAFE,
            writers=tuple(types),
            problem="different indexes: " + ", ".join(f"{name} {label}" for name, label in types.items()),
            consequence="a writer does not find the rows of another one, and inserts their keys a second time",
            advice="set the same hoodie.index.type, and hoodie.index.bucket.engine, for all writers",
        )
    for writer in facts.writers or (facts.ours,):
        if facts.buckets and not writer.lookup.buckets:
            yield TableFinding(
                check="index",
                risk=Risk.UNSAFE if writer.is_hudi else Risk.WARNING,
                writers=(writer.name,),
                problem=f"the files have names of the bucket index, but {writer.name} uses {writer.lookup.label}",
                consequence="new rows go to files without a bucket, where writers with the bucket index do not find "
                "them"
                if writer.is_hudi
                else "lakehouse refuses to write",
                advice="set hoodie.index.type=BUCKET and hoodie.bucket.index.num.buckets of the other writers",
            )


def check_buckets(facts: TableFacts) -> Iterator[TableFinding]:
    """All writers with the bucket index use one number of buckets and the same columns."""
    numbers = {writer.name: writer.lookup.buckets for writer in facts.writers if writer.lookup.buckets}
    if len(set(numbers.values())) > 1:
        yield TableFinding(
            check="buckets",
            risk=Risk.UNSAFE,
            writers=tuple(numbers),
            problem="different numbers of buckets: "
            + ", ".join(f"{name} {number}" for name, number in numbers.items()),
            consequence="a key belongs to another bucket for each writer, so its rows are inserted twice and not found",
            advice="set hoodie.bucket.index.num.buckets of the table in all writers (Hudi's default is 256)",
        )
    for name, number in numbers.items():
        if number.isdigit() and facts.buckets and max(facts.buckets) >= int(number):
            yield TableFinding(
                check="buckets",
                risk=Risk.UNSAFE,
                writers=(name,),
                problem=f"{name} uses {number} buckets, but the table has files of bucket {max(facts.buckets)}",
                consequence="keys in the higher buckets are not found, and are inserted a second time",
                advice="set hoodie.bucket.index.num.buckets to the number with which the table was created",
            )
    columns = {writer.name: ",".join(writer.lookup.columns) for writer in facts.writers if writer.lookup.columns}
    if len(set(columns.values())) > 1:
        yield TableFinding(
            check="buckets",
            risk=Risk.UNSAFE,
            writers=tuple(columns),
            problem="different hash columns: " + ", ".join(f"{name} {value}" for name, value in columns.items()),
            consequence="a key belongs to another bucket for each writer, so its rows are inserted twice and not found",
            advice="set the same hoodie.bucket.index.hash.field in all writers",
        )


def check_time_zone(facts: TableFacts) -> Iterator[TableFinding]:
    """The instants of all hosts are in one order."""
    if facts.ahead_s > _AHEAD_S:
        yield TableFinding(
            check="time_zone",
            risk=Risk.UNSAFE,
            problem=f"the newest instant is {facts.ahead_s / 60:.0f} minutes ahead of this host, in the time zone "
            f"{facts.config.timezone} of the table",
            consequence="writers use clocks or time zones that differ, so a later write of Hudi gets an earlier "
            "instant: its rows lose against older ones, and incremental readers skip them",
            advice="synchronise the clocks (NTP), and set TZ=UTC, or one other zone, for all writers",
        )
    elif facts.hudis and facts.config.timezone != "UTC":
        yield TableFinding(
            check="time_zone",
            risk=Risk.WARNING,
            problem=f"hoodie.table.timeline.timezone={facts.config.timezone}: instants are local times of the host",
            consequence="if the hosts have different time zones, later writes get earlier instants, and readers skip "
            "them",
            advice="set one TZ for all writers and services; it must not change at daylight saving time, so use UTC",
        )


def check_early_detection(facts: TableFacts) -> Iterator[TableFinding]:
    """Early conflict detection is on in all writers, or in none."""
    early = tuple(writer.name for writer in facts.writers if writer.early)
    if early and len(early) < len(facts.writers):
        option = "hoodie.write.concurrency.early.conflict.detection.enable"
        yield TableFinding(
            check="early_detection",
            risk=Risk.WARNING,
            writers=early,
            problem=f"{option} is on in {_named(early)} only",
            consequence="conflicts with the other writers are detected at the commit only, so long writes are repeated",
            advice=f"set {option} for all writers or for none, and hoodie.write.markers.type=DIRECT in jobs of Hudi",
        )


def check_timeline(facts: TableFacts) -> Iterator[TableFinding]:
    """No pending write is without a heartbeat."""
    if facts.failed:
        yield TableFinding(
            check="timeline",
            risk=Risk.WARNING,
            problem=f"pending writes without a heartbeat: {some(facts.failed, 5)}",
            consequence="they failed, or belong to a running job of Hudi that writes as the only writer, because such "
            "a job has no heartbeats. A rollback of a running write deletes its files",
            advice=f"when no job of Hudi runs: `lakehouse rollback failed --table {facts.name}`",
        )


#: The checks by name, in the order of the report.
TABLE_CHECKS: Mapping[str, Callable[[TableFacts], Iterator[TableFinding]]] = MappingProxyType(
    {
        "concurrency": check_concurrency,
        "lock": check_lock,
        "failed_writes": check_failed_writes,
        "heartbeats": check_heartbeats,
        "services": check_services,
        "metadata": check_metadata,
        "version": check_version,
        "merge": check_merge,
        "index": check_index,
        "buckets": check_buckets,
        "time_zone": check_time_zone,
        "early_detection": check_early_detection,
        "timeline": check_timeline,
    }
)


def _plain(value: str) -> str:
    """Return a class without its package, and a list of columns without spaces."""
    columns = [part.strip() for part in value.split(",")]
    return ",".join(column.rpartition(".")[2] if "org.apache" in column else column for column in columns)


def _named(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)
