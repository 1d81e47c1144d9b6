"""Collects facts for the checks of `lakehouse doctor` in Airflow's environment.

Pools, DAGs and heartbeats are rows of Airflow's database, which tasks cannot access. A task gets them from the
scheduler (see `missing_pools`) and from the API server, or from the web server of Airflow 2. The command line reads the
database itself (see `doctor_database`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.request import urlopen

from lakehouse.spec.contracts.dag_states import DagStates
from lakehouse.spec.contracts.doctor import CheckState, DoctorReport
from lakehouse.spec.contracts.pools import PoolFacts
from lakehouse.spec.sources.stream import DEFERRED
from lakehouse.spec.table.table_spec import TableSpec
from lakehouse_airflow.compat import health_url

#: Time limit of connections, in seconds.
CONNECT_S = 5
Result = tuple[CheckState, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTasks:
    """Tasks that the scheduler queued in the executor and that no worker has started for some time.

    Attributes:
        count: Number of these tasks.
        oldest_s: Seconds since the oldest of them was queued.
        running: Number of running tasks.
    """

    count: int = 0
    oldest_s: float = 0.0
    running: int = 0


def health_by_api() -> Mapping[str, Any]:
    """Return the health of Airflow's components from the API server, or from the web server of Airflow 2.

    Raise OSError or ValueError if it does not answer.
    """
    url = health_url()
    try:
        with urlopen(url, timeout=CONNECT_S) as answer:
            health: Mapping[str, Any] = json.load(answer)
    except (OSError, ValueError) as error:
        raise OSError(f"{url} does not answer: {error}") from error
    return health


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowFacts:
    """The facts that the checks read.

    Attributes:
        environ: Environment variables.
        specs: The valid specs.
        pools: The pools; None if neither the scheduler nor the database provided them.
        dags: The DAGs of lakehouse; None if nothing provided them, as for the pools.
        problem: Why `pools` or `dags` is None.
        queued: Tasks that no worker starts; None in a task, which cannot read them.
        health: Returns the health of Airflow's components.
        report: The report of Spark's environment; None if `report_problem` is set.
        report_problem: Why there is no report.
    """

    environ: Mapping[str, str]
    specs: tuple[TableSpec, ...] = ()
    pools: PoolFacts | None = None
    dags: DagStates | None = None
    problem: str = ""
    queued: QueuedTasks | None = None
    health: Callable[[], Mapping[str, Any]] = field(default=health_by_api)
    report: DoctorReport | None = None
    report_problem: str = ""


Check = Callable[[AirflowFacts], Result]


def deferred_ingestions(specs: Iterable[TableSpec]) -> list[str]:
    """Return the names of ingestions with a stream that a trigger watches."""
    ingests = {one.ingestion_name: one.ingest for spec in specs for one in spec.ingestions}
    streams = {name: ingest.stream for name, ingest in ingests.items() if ingest is not None}
    return [name for name, stream in streams.items() if stream is not None and stream.watch == DEFERRED]
