"""Interface functions for tasks on versions before Airflow 3.3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def add_keyed_events(accessor: Any, extra: Mapping[str, Any], names: Sequence[str]) -> None:
    """Emit one asset event with all partition names in its extra, because events have no keys there."""
    accessor.extra = {**extra, "partitions": list(names)}
