"""The Airflow pools of lakehouse: their names, their default slots, and the pools that specs use.

A task whose pool does not exist stays in the state `scheduled`. Airflow 3.3 only writes a line to the scheduler's log.
Therefore `airflow lakehouse setup` creates the pools, and a listener in the scheduler fails the tasks of a starting run
whose pool is missing (see `missing_pools`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakehouse.errors import UserError
from lakehouse.spec.table.table_spec import TableSpec
from lakehouse_airflow.compat.versions import has

SETUP = "airflow lakehouse setup" if has((3, 2)) else "python -m lakehouse_airflow setup"
#: The DAG that checks the deployment, and the keys of its run's configuration in which the scheduler stores facts.
DOCTOR, POOLS_KEY, DAGS_KEY = "lakehouse.doctor", "pools", "dags"
#: The DAG that decides about table services.
SCHEDULE = "services.schedule"
#: Airflow's own pool. It exists in every deployment.
DEFAULT_POOL = "default_pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPool:
    """A pool that a deployment needs, with its initial number of slots."""

    name: str
    slots: int
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSetting:
    """A pool of lakehouse, with the flag and the environment variable that set its slots, and the default."""

    name: str
    flag: str
    variable: str
    slots: int
    description: str


INGEST, SERVICES, PUBLISH, SCHEDULER = POOLS = (
    PoolSetting(
        name="lakehouse_ingest",
        flag="--ingest-slots",
        variable="LAKEHOUSE_INGEST_SLOTS",
        slots=2,
        description="Spark jobs of ingestion",
    ),
    PoolSetting(
        name="lakehouse_services",
        flag="--service-slots",
        variable="LAKEHOUSE_SERVICE_SLOTS",
        slots=2,
        description="Spark jobs of table services",
    ),
    PoolSetting(
        name="lakehouse_publish",
        flag="--publish-slots",
        variable="LAKEHOUSE_PUBLISH_SLOTS",
        slots=4,
        description="Publication, without Spark",
    ),
    PoolSetting(
        name="lakehouse_scheduler",
        flag="--scheduler-slots",
        variable="LAKEHOUSE_SCHEDULER_SLOTS",
        slots=2,
        description="Decisions about table services, without Spark",
    ),
)


def slots_of(setting: PoolSetting, given: str | None, environ: Mapping[str, str]) -> int:
    """Return the slots of a pool from its flag, its environment variable, or the default."""
    source, text = (setting.flag, given) if given else (setting.variable, environ.get(setting.variable))
    return parse_slots(text, source) if text else setting.slots


def parse_slots(text: str, source: str) -> int:
    """Parse a number of slots. Raise UserError unless it is positive, or -1 for an unlimited pool."""
    try:
        slots = int(text)
    except ValueError:
        slots = 0
    if slots < 1 and slots != -1:
        raise UserError(f"{source}={text!r} is not a number of slots: give 1 or more, or -1 for an unlimited pool")
    return slots


def spec_pools(specs: Iterable[TableSpec]) -> dict[str, tuple[str, ...]]:
    """Return the pools in `ingest.pool` of the specs, each with its tables."""
    pools: dict[str, tuple[str, ...]] = {}
    for spec in specs:
        for pool in dict.fromkeys(one.ingest.pool for one in spec.ingestions if one.ingest is not None):
            pools[pool] = (*pools.get(pool, ()), spec.table)
    return pools


def missing_pool_message(pool: str) -> str:
    """Return the error message for a task whose pool does not exist."""
    return (
        f"the pool {pool!r} does not exist, so Airflow would never start this task. Run `{SETUP}` where Airflow runs "
        f"(or `airflow pools set {pool} 2 ''`), then clear the task"
    )
