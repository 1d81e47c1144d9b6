"""Finds out whether Spark's own readers can open a location: object stores need a connector of Hadoop.

`scan` reads a table by Python workers, through the storage of this package, if the connector is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError

log = logging.getLogger(__name__)

#: Maven coordinates of connectors by URL scheme; `{hadoop}` is the version of Hadoop in Spark's JVM.
_PACKAGES = {
    "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.29",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingConnector:
    """A file system that Spark's JVM lacks.

    Attributes:
        scheme: The URL scheme, such as `s3a`.
        package: Maven coordinates of the connector for the running Hadoop; empty if they are unknown.
    """

    scheme: str
    package: str

    def __str__(self) -> str:
        """Return the problem and its remedy."""
        remedy = f"start Spark with --packages {self.package}" if self.package else "add its jars to Spark"
        return f"Spark has no Hadoop connector for {self.scheme}://; {remedy}"


def missing_connector(spark: SparkSession, storage: Storage) -> MissingConnector | None:
    """Return the connector that Spark's Parquet reader needs for a storage but lacks, or None if it can read.

    No request is sent to the storage. Paths of this machine and HDFS need no connector.
    """
    try:
        scheme, separator, _ = storage.native("x").partition("://")
    except UserError:
        # Spark cannot address a container without an account.
        return MissingConnector(scheme=storage.root.partition("://")[0], package="")
    if not separator:
        return None
    java: Any = spark
    jvm, conf = java._jvm, java._jsparkSession.sessionState().newHadoopConf()
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JError:
        hadoop = str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())
        return MissingConnector(scheme=scheme, package=_PACKAGES.get(scheme, "").format(hadoop=hadoop))
    return None


def connector_problem(
    spark: SparkSession, location: str, storage_options: Mapping[str, str] | None = None
) -> str | None:
    """Return the problem of Spark's own readers with a location and its remedy, or None; for checks of a deployment.

    Args:
        spark: The session.
        location: URL or path of a table or a folder.
        storage_options: Options of its storage.
    """
    missing = missing_connector(spark, open_storage(location, dict(storage_options or {})))
    return None if missing is None else str(missing)


def lacks_connector(spark: SparkSession, storage: Storage) -> bool:
    """Return whether Spark's Parquet reader cannot open a storage; if so, log the package that makes reads faster."""
    missing = missing_connector(spark, storage)
    if missing is not None:
        log.warning("%s: Python workers read the files, which is slower. %s", storage.root, missing)
    return missing is not None
