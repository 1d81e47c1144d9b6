"""Find the table specs that DAGs are made of.

A spec that does not parse must not take the DAGs of the others away, and must still be seen. Airflow stops every DAG of
a file that has an import error, so `dags/ingest.py` skips bad specs, and `dags/spec_errors.py`, a file without DAGs,
raises for them: it shows as broken in the UI, with the reasons.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow.sdk import CronDataIntervalTimetable
from airflow.sdk.exceptions import AirflowTimetableInvalid

from lakehouse.errors import UserError
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


def load_specs(directories: tuple[Path, ...]) -> Specs:
    """Load every `*.yaml` and `*.yml` below the directories, in the order of their paths."""
    good: dict[str, TableSpec] = {}
    errors: list[UserError] = []
    for directory in directories:
        if not directory.is_dir():
            errors.append(UserError(f"{directory} is no directory of table specs: create it, or set {DIRECTORIES}"))
    paths = {path for directory in directories for pattern in ("*.yaml", "*.yml") for path in directory.rglob(pattern)}
    for path in sorted(paths):
        try:
            spec = load_spec(path)
            _check_schedule(spec)
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


def _check_schedule(spec: TableSpec) -> None:
    # Airflow itself would find a bad cron expression too late: while it stores the DAGs, for all of the file.
    schedule = timetable(spec)
    try:
        if schedule is not None:
            schedule.validate()
    except AirflowTimetableInvalid as error:
        raise UserError(
            f"{spec.source}: ingest.schedule: {spec.ingest and spec.ingest.schedule!r} is no cron expression, such as "
            f"'0 * * * *' or '@hourly': {error}"
        ) from error
