"""Active runs that a user stops: the Airflow task of a run, and the effects of stopping it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakehouse.errors import UserError
from lakehouse.model.display import some
from lakehouse.platform.catalog.models import RunRow, TableRow
from lakehouse.platform.catalog.run_history import RunState
from lakehouse.platform.fleet_views.fleet import full_name_column
from lakehouse.platform.fleet_views.names import table_row
from lakehouse.spec.actions import Effects
from lakehouse.spec.table.services import VERSION_CHANGES


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowTask:
    """A task of a DAG run; `map_index` is -1 for a task that is not mapped."""

    dag: str
    run: str
    task: str
    map_index: int = -1

    @property
    def text(self) -> str:
        """The task in words, such as `task run[2] of services.schedule`."""
        index = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"task {self.task}{index} of the DAG {self.dag}, run {self.run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRun:
    """An active run of a service, its task, and the tables on which the same job works, sorted."""

    service: str
    task: AirflowTask
    tables: tuple[str, ...]
    progress: str = ""


def airflow_task(run: str) -> AirflowTask:
    """Return the task of a run id: `dag/run/task`, or `dag/run/task.index` of a mapped task.

    Raises UserError for a run that Airflow did not start and cannot stop.
    """
    parts = run.split("/")
    if len(parts) != 3 or not all(parts):
        raise UserError(f"the run {run!r} was not started by Airflow; end its process where it was started", run=run)
    dag, dag_run, task = parts
    name, dot, index = task.rpartition(".")
    if dot and index.isdecimal():
        return AirflowTask(dag=dag, run=dag_run, task=name, map_index=int(index))
    return AirflowTask(dag=dag, run=dag_run, task=task)


def active_run(session: Session, table: str, service: str, run: str) -> ActiveRun:
    """Return an active run on a table; raise UserError if none has this id, or if Airflow did not start it."""
    wanted = table_row(session, table)
    query = select(RunRow).filter_by(table_id=wanted.id, service=service, run_id=run, state=RunState.RUNNING)
    row = session.scalar(query)
    if row is None:
        raise UserError(f"no run {run!r} of {service} is active on {table}; it has ended meanwhile", run=run)
    others = select(full_name_column()).join(RunRow, RunRow.table_id == TableRow.id)
    others = others.where(RunRow.run_id == run, RunRow.state == RunState.RUNNING)
    return ActiveRun(
        service=service,
        task=airflow_task(run),
        tables=tuple(sorted(session.scalars(others))),
        progress=_progress(dict(row.progress or {})),
    )


def stop_effects(active: ActiveRun, table: str, is_finished: bool) -> Effects:
    """Return the effects of stopping a run."""
    if is_finished:
        return Effects.none(f"the {active.task.text} has ended; the run ends when its lease expires")
    others = [name for name in active.tables if name != table]
    shared = (f"The same job works on {some(others)}; these runs stop, too.",) if others else ()
    if active.service in VERSION_CHANGES:
        return Effects(
            sentences=(
                f"The {active.task.text} is marked failed without a retry, and its processes end.",
                "Readers see the table in the former version or in the new one. If the change has begun, writers are "
                f"refused until it is requested again: {active.service} to the new version continues it, and to the "
                "present version abandons it.",
            )
        )
    sentences = (
        f"The {active.task.text} is marked failed without a retry, and its processes end.",
        *shared,
        *((f"The run has done {active.progress}; this work is repeated.",) if active.progress else ()),
        f"Readers and writers see no change. A pending plan stays; the next run of {active.service} continues it.",
        f"The scheduler starts {active.service} again when it is due; pause it to prevent that.",
    )
    return Effects(sentences=sentences)


def _progress(progress: dict[str, object]) -> str:
    done, total = progress.get("done"), progress.get("total")
    return f"{done} of {total} {progress.get('unit', 'unit')}s" if done and total else ""
