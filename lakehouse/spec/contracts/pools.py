"""Airflow's pools. The scheduler stores them in a run of `lakehouse.doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.spec.contracts.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts(Document):
    """The slots of all pools by name (-1 means unlimited), and the pools that parsed lakehouse DAGs need."""

    slots: Mapping[str, int] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
