"""Arguments of DAGs and tasks whose values depend on Airflow's version."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lakehouse_airflow.compat.versions import has

#: Value of `retry_exponential_backoff`: the factor 2. Before Airflow 3.2 the argument is a flag.
RETRY_BACKOFF: Any = 2 if has((3, 2)) else True
#: Start date of DAGs that need none. Airflow 2 refuses a DAG without a start date.
NO_START_DATE = None if has((3, 0)) else datetime(2026, 1, 1, tzinfo=UTC)


def allowed_run_types(*names: str) -> dict[str, Any]:
    """Return the argument that limits a DAG to types of runs. It is empty before Airflow 3.2, which has no limit."""
    if not has((3, 2)):
        return {}
    return {"allowed_run_types": [name for name in names if name != "operator_triggered" or has((3, 3))]}
