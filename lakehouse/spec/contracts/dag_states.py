"""States of the Airflow DAGs on which table services, publications and pages depend."""

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
        is_paused: Whether it is paused. Airflow then starts no run, and a triggered run waits.
        schedule: Its schedule as Airflow shows it, such as `*/5 * * * *`.
        interval_s: Seconds between two scheduled runs; None if it has no time-based schedule.
        last_run_ms: Begin of the newest run; None if there is none.
        last_run_state: State of the newest run, such as `success`; empty if there is none.
        is_overdue: Whether it is not paused, but began no run for longer than its interval.
        may_edit: Whether the user may pause and unpause it; None outside of a user's request.
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
        """Describe an overdue DAG: the time since its last run, and its interval."""
        gap_s = (now_ms - (self.last_run_ms or now_ms)) / 1000
        return f"{self.dag_id} (last run {duration_text(gap_s)} ago, interval {duration_text(self.interval_s or 0)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DagStates(Document):
    """The states of some DAGs.

    Attributes:
        now_ms: Time of the read.
        dags: The DAGs, in the order of the request.
        missing: Requested ids for which this Airflow has no DAG, or no longer has the DAG file.
        deciding: For each requested service, the DAG whose runs decide about it.
    """

    now_ms: int
    dags: tuple[DagState, ...] = ()
    missing: tuple[str, ...] = ()
    deciding: Mapping[str, str] = field(default_factory=dict)
