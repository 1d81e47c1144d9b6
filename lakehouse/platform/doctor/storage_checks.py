"""Check the storages of all tables: rights, conditional puts, clocks, connectors of Spark.

For each bucket, file system or disk, one temporary file is written to the location of a table and deleted. Its name
marks an unfinished write: readers ignore it, and the table's cleanup removes it after a crash. On local disks the
check uses the closest existing folder, and creates none.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from lakehouse.core.storage.hadoop_connectors import CONNECTORS, jar_prefix, remedy
from lakehouse.core.storage.local import temporary_name
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import UNCONDITIONAL, Storage
from lakehouse.core.system.ids import RandomIds
from lakehouse.core.timeline.locks.protocol import skew_of
from lakehouse.errors import LakehouseError
from lakehouse.platform.doctor.catalog_checks import judge_skew
from lakehouse.platform.doctor.deployment import Deployment, Place
from lakehouse.platform.doctor.environment_checks import spark_home
from lakehouse.platform.doctor.finding import Finding, combined, failed, ok, skipped, warning

#: The jar of Spark whose version is that of Hadoop.
_HADOOP_JAR = re.compile(r"hadoop-(?:client-api|common)-(\d[\w.]*)\.jar")
_NOTHING = "neither specs nor catalog have a table"
#: Resolution of `Last-Modified`.
_LAST_MODIFIED_MS = 1000


def check_storage(deployment: Deployment) -> Finding:
    """Check that each storage is writable, and refuses to create a file twice or to replace an outdated version."""
    return combined(
        (_each(place, partial(conditional_puts, table=place.table)) for place in representatives(deployment)), _NOTHING
    )


def check_storage_clock(deployment: Deployment) -> Finding:
    """Compare the modification time of a new object with the clock of this host."""
    remote = [place for place in representatives(deployment) if "://" in place.location]

    def compare(storage: Storage) -> Finding:
        with _temporary(storage) as (path, data):
            before_ms = deployment.clock.now_ms()
            storage.create(path, data, unique=True)
            modified_ms = next(file.modified_ms for file in storage.list_dir("")[0] if file.path == path)
            skew_ms = skew_of(modified_ms, before_ms, deployment.clock.now_ms(), resolution_ms=_LAST_MODIFIED_MS)
        return judge_skew(skew_ms, storage.root)

    return combined((_each(place, compare) for place in remote), "no table is in an object store")


def conditional_puts(storage: Storage, *, table: str) -> Finding:
    """Check one storage: create a file, create it again, and replace an outdated version."""
    with _temporary(storage) as (path, first):
        second = json.dumps({"id": RandomIds().uuid()}).encode()
        if not storage.create(path, first, unique=True):
            return failed(f"{storage.root}: a new name was refused as existing")
        if storage.create(path, second, unique=True):
            return failed(
                f"{storage.root} ignores the condition If-None-Match of a put, so two writers can commit one instant",
                "Use a store with conditional puts, or keep the lock elsewhere (hoodie.write.lock.provider).",
            )
        stored, tag = storage.get_tagged(path)
        if tag.startswith(UNCONDITIONAL):
            return warning(
                f"{storage.root} has no conditional puts, so its tables need a lock elsewhere",
                "Set hoodie.write.lock.provider to sqlalchemy, zookeeper or hivemetastore for all writers of a table.",
            )
        if stored != first:
            return failed(f"{storage.root} returned other bytes than were written")
        storage.replace_if(path, second, tag)
        if storage.replace_if(path, first, tag) is not None:
            return failed(
                f"{storage.root} ignores the condition If-Match of a put, so two writers can hold one lock",
                "Use a store with conditional puts, or keep the lock elsewhere (hoodie.write.lock.provider).",
            )
    return ok(f"{storage.root} (of {table}) refuses a second creation")


def check_connectors(deployment: Deployment) -> Finding:
    """Check that Spark's own readers have Hadoop's connectors for the object stores of all tables.

    Without a connector, Python workers read the tables. No JVM is started: a connector is a jar of Spark, or named in
    `spark-defaults.conf`.
    """
    remote = [place for place in representatives(deployment) if "://" in place.location]
    schemes = sorted({_scheme_of_spark(place) for place in remote} & CONNECTORS.keys())
    return combined(
        (_connector(scheme, spark_home(deployment)) for scheme in schemes), "no table is in an object store"
    )


def _scheme_of_spark(place: Place) -> str:
    """Return the scheme with which Spark opens a location; empty for a wrong one, which `check_storage` reports."""
    try:
        return open_storage(place.location, place.options).native("").partition("://")[0]
    except LakehouseError:
        return ""


def _connector(scheme: str, home: Path | None) -> Finding:
    if home is None:
        return skipped("pyspark is not installed")
    try:
        names = os.listdir(home / "jars")
    except OSError as error:
        return failed(f"the jars of Spark in {home / 'jars'} cannot be listed: {error.strerror}")
    jar, conf = jar_prefix(scheme), home / "conf" / "spark-defaults.conf"
    if any(name.startswith(jar) for name in names):
        return ok(f"{jar}*.jar for {scheme}:// in {home / 'jars'}")
    if conf.is_file() and jar.removesuffix("-") in conf.read_text(encoding="utf-8"):
        return ok(f"{jar.removesuffix('-')} for {scheme}:// in {conf}")
    hadoop = next(
        (match[1] for name in sorted(names) if (match := _HADOOP_JAR.fullmatch(name))), "<its Hadoop version>"
    )
    return warning(
        f"Spark in {home} has no connector for {scheme}://, so Python workers read these tables",
        f"For faster reads by Spark, {remedy(scheme, hadoop)}, or add it to the packages of the Spark connection.",
    )


def representatives(deployment: Deployment) -> list[Place]:
    """Return one place per bucket, container, file system or disk."""
    chosen: dict[str, Place] = {}
    for place in deployment.places:
        if "://" not in place.location and not place.location.startswith("file:"):
            folder = existing_folder(Path(place.location))
            chosen.setdefault(f"disk {os.stat(folder).st_dev}", replace(place, location=str(folder)))
        else:
            parts = urlsplit(place.location)
            chosen.setdefault(f"{parts.scheme}://{parts.netloc}", place)
    return list(chosen.values())


def existing_folder(path: Path) -> Path:
    """Return the path, or its closest parent that is a folder."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _each(place: Place, check: Callable[[Storage], Finding]) -> Finding:
    try:
        return check(open_storage(place.location, place.options))
    except LakehouseError as error:
        # An unreachable storage does not prevent the checks of the others.
        return failed(f"{place.location}: {type(error).__name__}: {error}")


@contextmanager
def _temporary(storage: Storage) -> Iterator[tuple[str, bytes]]:
    """Yield a new name and new bytes; delete the file at the end."""
    token = RandomIds().uuid()
    path = temporary_name("lakehouse-doctor", token)
    try:
        yield path, json.dumps({"id": token}).encode()
    finally:
        storage.delete(path)
