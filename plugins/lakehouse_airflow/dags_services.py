"""Builds the DAG of each table service with its documentation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lakehouse.spec.table.services import service_spec
from lakehouse_airflow.compat import DAG
from lakehouse_airflow.services import service_dag

#: Schedule of a DAG whose scheduled runs decide nothing. It only defines the days for backfills.
DAYS = "0 0 * * *"
_DUE = (
    " The log of the task `due` and `lakehouse services explain --table namespace.table` show which tables are due, "
    "and why. An empty trigger form starts a normal run."
)
_START = datetime(2026, 1, 1, tzinfo=UTC)


def usual_service_dag(service: str, **changes: Any) -> DAG:
    """Build the DAG `services.<service>` for manual triggers and backfills.

    `services.schedule` decides about other runs.

    Args:
        service: Name of the service.
        changes: Arguments of `service_dag` that replace the defaults, such as `default_args`. With a `schedule`, the
            runs of this DAG decide about the service, so `services.schedule` must leave it out.
    """
    doc = service_spec(service).doc + _DUE
    usual = {"schedule": DAYS, "decide": "schedule" in changes, "start_date": _START, "doc": doc}
    return service_dag(service, **{**usual, **changes})
