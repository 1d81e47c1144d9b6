"""Builds the DAGs of a deployment in a user's DAG file:

    from lakehouse_airflow import lakehouse_dags
    lakehouse_dags(globals(), specs="tables")

A table spec with an error gets no DAG. The DAGs of the other specs are not affected. The DAG
`spec_errors.<folder>.<file>` fails every hour with the errors until the specs are corrected. To show them also as
import errors, add a second file:

    from lakehouse_airflow import lakehouse_dag_errors
    lakehouse_dag_errors(globals(), specs="tables")

Airflow removes all DAGs of a file with an import error, so this file must contain no DAG.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from lakehouse.errors import UserError
from lakehouse.spec.table.services import SERVICES
from lakehouse.spec.table.table_spec import TableSpec
from lakehouse_airflow.assets import source_assets, table_asset
from lakehouse_airflow.compat import (
    DAG,
    AirflowFailException,
    Asset,
    CronDataIntervalTimetable,
    get_parsing_context,
    task,
)
from lakehouse_airflow.dags_actions import DAG_ID as ACTIONS
from lakehouse_airflow.dags_actions import actions_dag
from lakehouse_airflow.dags_ingest import ingest_dag
from lakehouse_airflow.dags_publish import publish_dag
from lakehouse_airflow.dags_services import usual_service_dag
from lakehouse_airflow.doctor_dag import doctor_dag
from lakehouse_airflow.paused_dags import Paused, PausedDags, paused_dags
from lakehouse_airflow.pools import DOCTOR, SCHEDULER, spec_pools
from lakehouse_airflow.publish import POOL as PUBLISH_POOL
from lakehouse_airflow.schedule import DAG_ID as SCHEDULE_ID
from lakehouse_airflow.schedule import schedule_dag
from lakehouse_airflow.services import POOL as SERVICE_POOL
from lakehouse_airflow.specs import Specs, declare_folders, load_specs, spec_directories

#: One or several folders of table specs. Relative paths start at the folder of the DAG file.
Folders = str | Path | Sequence[str | Path]
_ERRORS = "spec_errors"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """One DAG file, its folders of specs, and their specs."""

    file: Path
    folders: tuple[Path, ...]
    specs: Specs

    @property
    def errors_id(self) -> str:
        """Id of the DAG that reports errors.

        It contains the folder's name, so it is unique if there are several folders.
        """
        return f"{_ERRORS}.{self.file.parent.name}.{self.file.stem}"


# parameters: the settings of a deployment
def lakehouse_dags(
    module: MutableMapping[str, Any],
    *,
    specs: Folders | None = None,
    ingest: bool = True,
    publish: bool = True,
    services: Mapping[str, str] | Collection[str] | None = None,
    doctor: bool | None = None,
    actions: bool | None = None,
    paused: Paused | None = None,
    default_args: Mapping[str, Any] | None = None,
    pools: Mapping[str, str] | None = None,
    conf: Mapping[str, Any] | None = None,
    change: Callable[[DAG], object] | None = None,
) -> tuple[DAG, ...]:
    """Build one DAG per ingested table, publication and table service, and the DAG `lakehouse.doctor`.

    Services work on all tables of the catalog. If several files of a deployment call this function, only one of them
    may build services and the doctor; the others pass `services=()`.

    Args:
        module: `globals()` of the DAG file.
        specs: Folders of table specs. Relative paths start at the folder of the DAG file. Default: `LAKEHOUSE_SPECS`,
            otherwise the folder `tables`.
        ingest: Build the DAGs `ingest.<table>`.
        publish: Build the DAGs `publish.<table>`.
        services: Services for which DAGs are built: names, or a mapping of names to cron expressions in UTC. Default:
            all. The DAG `services.schedule` decides about the services without a cron expression; the others decide in
            their own DAGs.
        doctor: Build the DAG `lakehouse.doctor`, which checks the deployment every day. Default: if services are built.
        actions: Build the DAG `lakehouse.actions`, which runs actions that users request on pages. Default: if services
            are built.
        paused: The DAGs that are paused when Airflow first creates them: all (True), none (False), or ids and patterns
            such as `["ingest.*", "publish.*"]`; `!services.schedule` excepts a DAG. Default: `LAKEHOUSE_DAGS_PAUSED`,
            otherwise Airflow's own setting. `spec_errors` never starts paused.
        default_args: Airflow's default arguments of all tasks, such as `on_failure_callback`.
        pools: Replaced pool names, such as `{"lakehouse_services": "etl"}`.
        conf: Spark properties of all jobs. Properties in a table spec override them.
        change: Function that is called with each DAG and can change the DAG and its tasks.

    Returns:
        The DAGs. In a task process, only the DAG of the task is built.

    Raises:
        UserError: For a missing folder of specs, an unknown service or pool, or an id in `paused` that matches no DAG.
    """
    page = _page(module, specs)
    _check_pools(pools or {}, page.specs.good)
    decision = paused_dags(paused)
    settings: dict[str, Any] = {"default_args": dict(default_args or {})}
    conf = dict(conf or {})
    builders = dict(_tables(page.specs.good, ingest, publish, settings, conf))
    assets = [table_asset(spec) for spec in page.specs.good]
    schedules = _schedules(services)
    builders |= _service_builders(schedules, assets, {"conf": conf, **settings})
    usual = bool(schedules)
    builders |= {DOCTOR: partial(doctor_dag, **settings)} if (usual if doctor is None else doctor) else {}
    builders |= {ACTIONS: partial(actions_dag, **settings)} if (usual if actions is None else actions) else {}
    if page.specs.errors:
        builders[page.errors_id] = partial(_errors_dag, page, settings)
    made = []
    for dag in _built(builders, page.folders):
        _decide_state(dag, decision)
        _rename_pools(dag, pools or {})
        if change is not None:
            change(dag)
        module[re.sub(r"\W", "_", dag.dag_id)] = dag
        made.append(dag)
    return tuple(made)


def lakehouse_dag_errors(module: MutableMapping[str, Any], *, specs: Folders | None = None) -> None:
    """Raise UserError with the errors of all table specs, which Airflow shows as an import error of the DAG file.

    Airflow only parses files that contain the words `dag` and `airflow`; the names of this function and module do.

    Args:
        module: `globals()` of the DAG file, which must contain no DAGs.
        specs: Folders of table specs, as for `lakehouse_dags`.
    """
    _page(module, specs).specs.check()


def _page(module: MutableMapping[str, Any], specs: Folders | None) -> _Page:
    named = module.get("__file__")
    if not named:
        raise UserError(
            "lakehouse_dags needs globals() of the DAG file, because relative paths of specs start at its folder"
        )
    file = Path(named).absolute()
    if specs is None:
        folders = spec_directories(file.parent)
    else:
        given = [specs] if isinstance(specs, str | Path) else list(specs)
        folders = tuple(file.parent / folder for folder in given)
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                f"{folder} is not a directory: create it for table specs, or pass another directory as specs=",
                path=str(folder),
            )
    return _Page(file=file, folders=folders, specs=load_specs(folders))


def _built(builders: Mapping[str, Callable[[], DAG]], folders: tuple[Path, ...]) -> Iterator[DAG]:
    """Yield the DAGs. In a task process, only the DAG of the task is built."""
    parsed = get_parsing_context().dag_id
    for dag_id, build in builders.items():
        if parsed in (None, dag_id):
            declare_folders(dag_id, folders)
            yield build()


def _tables(
    specs: Sequence[TableSpec], ingest: bool, publish: bool, settings: Mapping[str, Any], conf: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], DAG]]]:
    for spec in specs:
        publication = spec.publication()
        for one in spec.ingestions if ingest else ():
            assert one.ingest is not None, "the id belongs to an ingestion"
            yield (
                f"ingest.{one.ingestion_name}",
                partial(ingest_dag, one, one.ingest, conf=conf, sources=source_assets(one, specs), **settings),
            )
        if publish and publication is not None:
            yield f"publish.{spec.table}", partial(publish_dag, spec, publication, conf=conf, **settings)


def _service_builders(
    schedules: Mapping[str, str], assets: Sequence[Asset], settings: Mapping[str, Any]
) -> dict[str, Callable[[], DAG]]:
    """Return a builder per service DAG, and one for `services.schedule` if a service has no own schedule."""
    builders: dict[str, Callable[[], DAG]] = {}
    for name, schedule in schedules.items():
        own = {"schedule": schedule} if schedule else {}
        builders[f"services.{name}"] = partial(usual_service_dag, name, **own, **settings)
    decided = [word for name, schedule in schedules.items() if not schedule for word in ("--service", name)]
    if decided:
        builders[SCHEDULE_ID] = partial(schedule_dag, assets=assets, arguments=decided, **settings)
    return builders


def _schedules(services: Mapping[str, str] | Collection[str] | None) -> Mapping[str, str]:
    if services is None:
        return dict.fromkeys(SERVICES, "")
    if isinstance(services, Mapping):
        return services
    if isinstance(services, str):
        raise UserError(f"services={services!r} is a string: pass a list of names, such as [{services!r}]")
    # `usual_service_dag` raises the error for an unknown name.
    return dict.fromkeys(services, "")


def _check_pools(pools: Mapping[str, str], specs: Sequence[TableSpec]) -> None:
    names = sorted({SERVICE_POOL, SCHEDULER.name, PUBLISH_POOL, *spec_pools(specs)})
    for name in pools:
        if name not in names:
            raise UserError(f"pools: no task uses the pool {name!r}; the pools are {', '.join(names)}", pool=name)


def _rename_pools(dag: DAG, pools: Mapping[str, str]) -> None:
    for each in dag.tasks:
        each.pool = pools.get(each.pool, each.pool)


def _decide_state(dag: DAG, decision: PausedDags) -> None:
    starts_paused = decision.starts_paused(dag.dag_id)
    if starts_paused is not None and not dag.dag_id.startswith(_ERRORS):
        dag.is_paused_upon_creation = starts_paused


def _errors_dag(page: _Page, settings: Mapping[str, Any]) -> DAG:
    """Build the DAG that fails with the spec errors, so that alerts on failed tasks report them."""
    lines = "\n".join(f"* {error.message}" for error in page.specs.errors)
    with DAG(
        dag_id=page.errors_id,
        description=f"{len(page.specs.errors)} table spec(s) have errors and no DAG",
        doc_md=f"These table specs have no DAG. This DAG disappears when they are corrected.\n\n{lines}",
        schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        **{"tags": ["lakehouse", "broken"], **settings},
    ) as dag:
        check_specs.override(task_id="check", retries=0)([str(folder) for folder in page.folders])
    return dag


@task
def check_specs(folders: Sequence[str]) -> None:
    """Task: fail with the errors of the table specs in these folders."""
    try:
        load_specs(tuple(Path(folder) for folder in folders)).check()
    except UserError as error:
        raise AirflowFailException(error.message) from error
