"""The states of Airflow's DAGs that table services, publications and pages depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.spec.contracts.document import Document
from lakehouse.spec.quantities import duration_text


@dataclass(frozen=True, slots=True, kw_only=True)
class DagState:
    """One DAG.

    Attributes:
        dag_id: Its id.
        is_paused: Whether it is paused: then Airflow starts no run of it, and a triggered run waits.
        schedule: Its schedule as Airflow shows it, such as `*/5 * * * *`.
        interval_s: Seconds between two runs by the clock; None without such runs.
        last_run_ms: Begin of the newest run; None if there is none.
        last_run_state: State of the newest run, such as `success`; empty if there is none.
        is_overdue: It is not paused, and began no run for longer than its interval.
        may_edit: Whether the user may pause and unpause it; None if no user asked.
    """

    dag_id: str
    is_paused: bool
    schedule: str = ""
    interval_s: int | None = None
    last_run_ms: int | None = None
    last_run_state: str = ""
    is_overdue: bool = False
    may_edit: bool | None = None

    def overdue_text(self, now_ms: int) -> str:
        """Return for how long an overdue DAG has begun no run, and its interval."""
        gap_s = (now_ms - (self.last_run_ms or now_ms)) / 1000
        return f"{self.dag_id} (last run {duration_text(gap_s)} ago, interval {duration_text(self.interval_s or 0)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DagStates(Document):
    """The states of some DAGs.

    Attributes:
        now_ms: When they were read.
        dags: The DAGs, in the order of the request.
        missing: Requested ids without a DAG in this Airflow, or whose file Airflow no longer finds.
        deciding: The DAG whose runs decide about a service, by the name of the requested service.
    """

    now_ms: int
    dags: tuple[DagState, ...] = ()
    missing: tuple[str, ...] = ()
    deciding: Mapping[str, str] = field(default_factory=dict)
