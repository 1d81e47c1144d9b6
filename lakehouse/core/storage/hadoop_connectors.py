"""Connectors of Hadoop with which Spark's own readers open object stores, by the URL scheme that Spark uses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Scheme -> Maven coordinates; `{hadoop}` is the version of Hadoop in Spark's JVM.
CONNECTORS: Mapping[str, str] = MappingProxyType(
    {
        "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
        "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
        "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.29",
        "oss": "org.apache.hadoop:hadoop-aliyun:{hadoop}",
        "cosn": "org.apache.hadoop:hadoop-cos:{hadoop}",
        "obs": "org.apache.hadoop:hadoop-huaweicloud:{hadoop}",
    }
)


def jar_prefix(scheme: str) -> str:
    """Return how the names of the jar of a connector begin, such as `hadoop-aws-`."""
    return CONNECTORS[scheme].split(":")[1] + "-"


def remedy(scheme: str, hadoop: str) -> str:
    """Return what adds a connector to Spark."""
    package = CONNECTORS.get(scheme, "").format(hadoop=hadoop)
    return f"start Spark with --packages {package}" if package else f"add the jars of Hadoop's file system {scheme}"
