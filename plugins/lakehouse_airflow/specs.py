"""Loads the table specs from which DAGs are built.

A wrong spec must be reported without stopping the DAGs of other specs. Airflow removes every DAG of a file with an
import error. Therefore DAG files skip wrong specs, and a separate file without DAGs raises their errors. The UI shows
that file as broken, with the reasons.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lakehouse.errors import UserError
from lakehouse.spec.table.folder import spec_paths
from lakehouse.spec.table.publish import PublishSpec
from lakehouse.spec.table.table_spec import TableSpec, load_spec
from lakehouse_airflow.compat import AirflowTimetableInvalid, CronDataIntervalTimetable, conf

#: Variable with the spec directories, separated like PATH. Default: `tables` next to the DAG files.
DIRECTORIES = "LAKEHOUSE_SPECS"
#: Folders of specs by DAG id. Parsing a DAG file fills the mapping, in the DAG processor and in each task process.
_declared: dict[str, tuple[Path, ...]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """Valid specs sorted by path, and the errors of invalid specs."""

    good: tuple[TableSpec, ...]
    errors: tuple[UserError, ...]

    def check(self) -> None:
        """Raise UserError with all errors, one line per spec."""
        if self.errors:
            lines = "\n".join(error.message for error in self.errors)
            raise UserError(f"{len(self.errors)} table spec(s) cannot be used:\n{lines}")


def spec_directories(dags: Path, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the directories of specs; `dags` is the directory of the DAG files."""
    named = tuple(Path(text) for text in environ.get(DIRECTORIES, "").split(os.pathsep) if text)
    return named or (dags / "tables",)


def dags_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the DAGs from Airflow's configuration."""
    return Path(environ.get("AIRFLOW__CORE__DAGS_FOLDER") or conf.get("core", "dags_folder"))


def declare_folders(dag_id: str, folders: tuple[Path, ...]) -> None:
    """Remember the spec folders of a DAG for the jobs of its tasks."""
    _declared[dag_id] = folders


def folders_of_dag(dag_id: str | None, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the spec folders of a DAG, by default those of the deployment."""
    return _declared.get(dag_id or "") or spec_directories(dags_folder(environ), environ)


def load_specs(directories: tuple[Path, ...]) -> Specs:
    """Load every `*.yaml` and `*.yml` file below the directories, sorted by path."""
    good: dict[str, TableSpec] = {}
    errors: list[UserError] = []
    for directory in directories:
        if not directory.is_dir():
            errors.append(UserError(f"{directory} is not a directory: create it for table specs, or set {DIRECTORIES}"))
    for path in spec_paths(directories):
        try:
            spec = load_spec(path)
            _check_schedules(spec)
            if spec.table in good:
                raise UserError(
                    f"{path}: table {spec.table!r} is already declared in {good[spec.table].source}; remove one of both"
                )
        except UserError as error:
            errors.append(error)
        else:
            good[spec.table] = spec
    return Specs(good=tuple(good.values()), errors=tuple(errors))


def timetable(spec: TableSpec) -> CronDataIntervalTimetable | None:
    """Return the timetable of an ingestion, with a run at the end of each cron interval.

    Return None if it has no schedule.
    """
    if spec.ingest is None or spec.ingest.schedule is None:
        return None
    return CronDataIntervalTimetable(spec.ingest.schedule, timezone=spec.ingest.timezone)


def publish_timetable(publish: PublishSpec) -> CronDataIntervalTimetable | None:
    """Return the timetable of a publication from its cron expression and time zone.

    Return None if it has no schedule.
    """
    return CronDataIntervalTimetable(publish.schedule, timezone=publish.timezone) if publish.schedule else None


def _check_schedules(spec: TableSpec) -> None:
    # Airflow would only detect a wrong cron expression when it stores the DAGs, and then drop all DAGs of the file.
    publish = spec.publication()
    ingests = [one.ingest for one in spec.ingestions]
    for setting, schedule in (
        *(("ingest.schedule", ingest and ingest.schedule) for ingest in ingests),
        ("services.publish.schedule", publish and publish.schedule),
    ):
        problem = _problem(schedule) if schedule else None
        if problem is not None:
            raise UserError(
                f"{spec.source}: {setting}: {schedule!r} is not a cron expression such as '0 * * * *' or '@hourly': "
                f"{problem}"
            )


@lru_cache
def _problem(schedule: str) -> str | None:
    """Return the error in a cron expression, or None if it is valid. Cached, because validation is slow."""
    try:
        CronDataIntervalTimetable(schedule, timezone="UTC").validate()
    except AirflowTimetableInvalid as error:
        return str(error)
    return None
