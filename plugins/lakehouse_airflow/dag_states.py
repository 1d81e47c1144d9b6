"""Read from Airflow's database which lakehouse DAGs are paused or had no run for longer than their interval.

Only components with access to the database import this module: the scheduler, the API server and the command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.models.dag import DagModel, DagTag
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.timetables.base import TimeRestriction
from airflow.utils.state import DagRunState

from lakehouse.spec.contracts.dag_states import DagState, DagStates
from lakehouse_airflow.compat import (
    existing_dags,
    is_periodic,
    may_be_periodic,
    next_run,
    run_after,
    schedule_text,
    timezone,
)
from lakehouse_airflow.missing_pools import TAG
from lakehouse_airflow.pools import SCHEDULE

#: Tolerance, because Airflow needs some time to begin a run.
_GRACE = timedelta(minutes=5)
_ACTIVE = (DagRunState.RUNNING, DagRunState.QUEUED)
#: Position of the argument `decide` of the task `due` (see `service_dag`).
_DUE, _DECIDE = "due", 2


def lakehouse_dag_ids(session: Any) -> list[str]:
    """Return the ids of all DAGs with the tag `lakehouse` whose files exist, in alphabetical order."""
    tagged = session.query(DagTag.dag_id).join(DagModel, DagModel.dag_id == DagTag.dag_id)
    return sorted(dag_id for (dag_id,) in tagged.filter(DagTag.name == TAG, existing_dags()))


def dag_states(session: Any, now: datetime, dag_ids: Iterable[str]) -> DagStates:
    """Return the states of some DAGs at time `now`. `missing` lists the ids that do not exist in Airflow."""
    wanted = list(dict.fromkeys(dag_ids))
    query = session.query(DagModel).filter(DagModel.dag_id.in_(wanted), existing_dags())
    models = {model.dag_id: model for model in query.all()}
    return DagStates(
        now_ms=_ms(now),
        dags=tuple(_state(session, models[name], _newest_run(session, name), now) for name in wanted if name in models),
        missing=tuple(name for name in wanted if name not in models),
    )


def deciding_dag(session: Any, service: str) -> str:
    """Return the id of the DAG whose scheduled runs decide about a service: its own DAG or `services.schedule`."""
    own = f"services.{service}"
    stored = SerializedDagModel.get(own, session=session)
    due = None if stored is None else stored.dag.task_dict.get(_DUE)
    arguments = list(getattr(due, "op_args", None) or ())
    return own if len(arguments) > _DECIDE and arguments[_DECIDE] is True else SCHEDULE


def run_interval(timetable: Any, last: datetime, now: datetime) -> tuple[int | None, bool]:
    """Return the seconds between the two runs after `last`, and whether both should have begun before `now`.

    The first value is None for a timetable that does not depend on time, such as a stream or asset schedule.
    """
    restriction = TimeRestriction(earliest=timezone.coerce_datetime(last), latest=None, catchup=True)
    first = next_run(timetable, None, restriction)
    second = first and next_run(timetable, first, restriction)
    if not first or not second or second.run_after <= first.run_after:
        return None, False
    # A run with a data interval begins at its end, which is one interval after the first run that is missing.
    is_by_interval = first.data_interval is not None and first.data_interval.start < first.run_after
    limit = first.run_after if is_by_interval else second.run_after
    return int((second.run_after - first.run_after).total_seconds()), now > limit + _GRACE


def _state(session: Any, model: Any, run: Any, now: datetime) -> DagState:
    began = None if run is None else run.start_date or run.queued_at or run_after(run)
    interval_s, late = None, False
    stored = SerializedDagModel.get(model.dag_id, session=session) if may_be_periodic(model) else None
    if stored is not None and is_periodic(stored.dag.timetable):
        interval_s, late = run_interval(stored.dag.timetable, began or now, now)
    # An unfinished run may use up the DAG's `max_active_runs`.
    is_full = run is not None and run.state in _ACTIVE and (model.max_active_runs or 1) == 1
    return DagState(
        dag_id=model.dag_id,
        is_paused=bool(model.is_paused),
        schedule=schedule_text(model),
        interval_s=interval_s,
        last_run_ms=None if began is None else _ms(began),
        last_run_state="" if run is None else str(getattr(run.state, "value", run.state)),
        is_overdue=late and not model.is_paused and not is_full,
    )


def _newest_run(session: Any, dag_id: str) -> Any:
    return session.query(DagRun).filter(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).first()


def _ms(moment: datetime) -> int:
    return round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
