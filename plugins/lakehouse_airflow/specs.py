"""Find the table specs that DAGs are made of.

A spec that does not parse must not take the DAGs of the others away, and must still be seen. Airflow stops every DAG of
a file that has an import error, so `dags/ingest.py` skips bad specs, and `dags/spec_errors.py`, a file without DAGs,
raises for them: it shows as broken in the UI, with the reasons.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from airflow.sdk import CronDataIntervalTimetable
from airflow.sdk.exceptions import AirflowTimetableInvalid

from lakehouse.errors import UserError
from lakehouse.spec.folder import spec_paths
from lakehouse.spec.publish import PublishSpec
from lakehouse.spec.table import TableSpec, load_spec

#: Directories with specs, separated like PATH; without it, `tables` beside the DAG files.
DIRECTORIES = "LAKEHOUSE_SPECS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """The specs that can be used, by path, and what is wrong with the others."""

    good: tuple[TableSpec, ...]
    errors: tuple[UserError, ...]

    def check(self) -> None:
        """Raise UserError with all that is wrong, one line per spec."""
        if self.errors:
            lines = "\n".join(error.message for error in self.errors)
            raise UserError(f"{len(self.errors)} table spec(s) cannot be used:\n{lines}")


def spec_directories(dags: Path, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the directories to look for specs in; `dags` is the directory of the DAG files."""
    named = tuple(Path(text) for text in environ.get(DIRECTORIES, "").split(os.pathsep) if text)
    return named or (dags / "tables",)


def dags_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the DAGs: as Airflow is configured, else that beside the plugins."""
    return Path(environ.get("AIRFLOW__CORE__DAGS_FOLDER") or Path(__file__).parents[2] / "dags")


def load_specs(directories: tuple[Path, ...]) -> Specs:
    """Load every `*.yaml` and `*.yml` below the directories, in the order of their paths."""
    good: dict[str, TableSpec] = {}
    errors: list[UserError] = []
    for directory in directories:
        if not directory.is_dir():
            errors.append(UserError(f"{directory} is no directory of table specs: create it, or set {DIRECTORIES}"))
    for path in spec_paths(directories):
        try:
            spec = load_spec(path)
            _check_schedules(spec)
            if spec.table in good:
                raise UserError(f"{path}: table {spec.table!r} is declared in {good[spec.table].source} already.")
        except UserError as error:
            errors.append(error)
        else:
            good[spec.table] = spec
    return Specs(good=tuple(good.values()), errors=tuple(errors))


def timetable(spec: TableSpec) -> CronDataIntervalTimetable | None:
    """Return when a table is ingested: at the end of each interval of its cron expression, UTC; None for never."""
    if spec.ingest is None or spec.ingest.schedule is None:
        return None
    return CronDataIntervalTimetable(spec.ingest.schedule, timezone="UTC")


def publish_timetable(publish: PublishSpec) -> CronDataIntervalTimetable | None:
    """Return when a publication runs by the clock: by its cron expression in its own time zone; None for never."""
    return CronDataIntervalTimetable(publish.schedule, timezone=publish.timezone) if publish.schedule else None


def _check_schedules(spec: TableSpec) -> None:
    # Airflow itself would find a bad cron expression too late: while it stores the DAGs, for all of the file.
    publish = spec.publication()
    for setting, schedule in (
        ("ingest.schedule", spec.ingest and spec.ingest.schedule),
        ("services.publish.schedule", publish and publish.schedule),
    ):
        problem = _problem(schedule) if schedule else None
        if problem is not None:
            raise UserError(
                f"{spec.source}: {setting}: {schedule!r} is no cron expression, such as '0 * * * *' or '@hourly': "
                f"{problem}"
            )


@lru_cache
def _problem(schedule: str) -> str | None:
    """Return what is wrong with a cron expression. A look takes as long as a spec, and many share one."""
    try:
        CronDataIntervalTimetable(schedule, timezone="UTC").validate()
    except AirflowTimetableInvalid as error:
        return str(error)
    return None
