"""The page of Airflow's versions: which features of lakehouse each version has."""

from __future__ import annotations

from docs.generators.markdown import page, table
from lakehouse_airflow.compat.features import FEATURES
from lakehouse_airflow.compat.versions import LINES, line_text

_INTRO = """\
The supported versions of Airflow, and the features that need a newer one than the oldest. Operators, sensors, triggers,
notifiers, pools, `lakehouse_dags`, all service DAGs and schedules by time and by asset (dataset) work on every version.
The plugin logs what the installed version lacks, its attribute `missing` has the list, and
[`lakehouse doctor`](../airflow/doctor.md) shows it. On a version that is not in the table the plugin does not load, and
`airflow plugins` and the log name the reason."""

_ABSENCE = """\
The pages also need SQLAlchemy 2. Airflow 3.1 allows 1.4, which the FAB auth manager requires; with it there are no
pages. Before Airflow 3.1 the plugin has the name `lakehouse without pages`."""

_IMPORTS = """\
DAG files import Airflow's names from the modules of their version, for example
`from airflow.timetables.interval import CronDataIntervalTimetable` before Airflow 3.2. A DAG file for several versions
can import them from `lakehouse_airflow.compat`, which this package and its DAG files use."""


def airflow_versions_page() -> str:
    """Return the page."""
    heads = ["feature", *(f"Airflow {line_text(line)}" for line in LINES)]
    rows = [
        ["operators, sensors, service DAGs", *("yes" for _ in LINES)],
        *([one.name, *("yes" if line >= one.since else "no" for line in LINES)] for one in FEATURES),
    ]
    absent = [[one.name, line_text(one.since), one.without] for one in FEATURES]
    return page(
        "Versions of Airflow",
        "`lakehouse_airflow.compat`",
        _INTRO,
        table(heads, rows),
        _ABSENCE,
        "## Behaviour without a feature",
        table(["feature", "since", "before"], absent),
        "## DAG files",
        _IMPORTS,
    )
