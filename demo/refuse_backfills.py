"""Refuse backfills in an Airflow on SQLite. The demo copies this file into its Airflow as airflow_local_settings.py.

A backfill locks SQLite while it creates its runs. Airflow then rolls back a run that the scheduler processes, and the
scheduler ends. Each process of Airflow imports the file, so the command line, the REST API and the pages all refuse a
backfill before they write a row.
"""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from lakehouse_airflow.compat import DagRunTypeNotAllowed

#: Airflow copies the names of this list into its settings.
__all__: list[str] = []

REASON = "LAKEHOUSE_DEMO_NO_BACKFILL"


@event.listens_for(Session, "before_flush")
def refuse_backfill(session: Session, context: Any, instances: Any) -> None:
    """Raise an error that the REST API answers as a bad request, if the transaction creates a backfill."""
    for row in session.new:
        if getattr(row, "__tablename__", None) == "backfill":
            raise DagRunTypeNotAllowed(os.environ.get(REASON) or "backfills need an Airflow on PostgreSQL")
