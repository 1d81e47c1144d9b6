"""The adapter to Spark: engine, data source, streaming, file readers. This is the only package that imports pyspark.

The names of `__all__` are public. They are imported at first use, because some modules run without pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakehouse.spark.attached_catalog import attach, detach
    from lakehouse.spark.frame_writer import write
    from lakehouse.spark.frames import read, register
    from lakehouse.spark.session import job_session

__all__ = ["attach", "detach", "job_session", "read", "register", "write"]

_MODULES = {
    "attach": "lakehouse.spark.attached_catalog",
    "detach": "lakehouse.spark.attached_catalog",
    "job_session": "lakehouse.spark.session",
    "read": "lakehouse.spark.frames",
    "register": "lakehouse.spark.frames",
    "write": "lakehouse.spark.frame_writer",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
