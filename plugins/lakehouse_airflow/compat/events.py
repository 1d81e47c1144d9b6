"""Asset events as this package reads them, independent of Airflow's version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggeringEvent:
    """An asset event that started a run.

    Attributes:
        name: Name of the asset. Airflow 2 has no names of assets; there it is derived from the URI.
        uri: URI of the asset.
        extra: Extra of the event.
    """

    name: str
    uri: str
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedEvent:
    """An asset event in Airflow's database, with the DAG of the task that emitted it."""

    extra: Mapping[str, Any]
    dag_id: str
