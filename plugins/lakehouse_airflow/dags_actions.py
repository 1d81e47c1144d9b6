"""The DAG `lakehouse.actions`. It runs actions that users request on pages.

Actions are rollback, savepoint, restore, upgrade and downgrade of the table version, publish and withdraw.

The params of a run are the number of a recorded action, or a table, an action and its parameters. The catalog records
the result. Permission to edit this DAG is the permission to act on tables.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from lakehouse.errors import UserError
from lakehouse.spec.actions import ACTIONS, dag_run_id
from lakehouse_airflow.commands import run_command
from lakehouse_airflow.compat import DAG, NO_START_DATE, Param, get_current_context, task
from lakehouse_airflow.job_environment import AUTHOR
from lakehouse_airflow.paused_dags import creation_state
from lakehouse_airflow.processes import end_job
from lakehouse_airflow.publish import POOL
from lakehouse_airflow.refusals import noted_refusals

DAG_ID = "lakehouse.actions"
_NAMES = [spec.name for spec in ACTIONS if spec.by_dag]


def actions_dag(**dag: Any) -> DAG:
    """Build the DAG `lakehouse.actions`.

    Args:
        dag: Additional arguments of Airflow's DAG: callbacks, deadlines, default_args.
    """
    with DAG(
        dag_id=DAG_ID,
        description="Run the actions that users request on the lakehouse pages",
        doc_md=__doc__,
        schedule=None,
        start_date=NO_START_DATE,
        catchup=False,
        # Actions do not wait for each other here, because the table's locks serialize them.
        max_active_runs=8,
        params={
            "action_id": Param(
                None,
                type=["null", "integer"],
                title="Recorded action",
                description="Number of an action that a page recorded, for example 12. The other fields are "
                "then ignored.",
            ),
            "table": Param(
                None,
                type=["null", "string"],
                title="Table",
                description="Table of a new action, for example sales.orders.",
            ),
            "action": Param(
                None,
                type=["null", "string"],
                enum=[None, *_NAMES],
                title="Action on the table",
                description="Kind of the action, for example savepoint.",
            ),
            "parameters": Param(
                None,
                type=["null", "object"],
                title="Parameters of the action",
                description='Parameter values by name, for example {"instant": "20260131120000000"}.',
            ),
        },
        **{"tags": ["lakehouse"], "is_paused_upon_creation": False, **creation_state(DAG_ID), **dag},
    ) as made:
        act.override(pool=POOL, execution_timeout=timedelta(hours=1))()
    return made


@task
def act() -> dict[str, Any]:
    """Run the action in the run's params and return its record.

    If the action is already done, return the existing record.
    """
    context = get_current_context()
    instance, params = context["ti"], context["params"]
    job_id = f"{instance.dag_id}/{instance.run_id}/{instance.task_id}"
    author = getattr(context["dag_run"], "triggering_user_name", None) or "airflow"
    try:
        with noted_refusals(context):
            require_own_run(params, instance.run_id)
            printed = run_command(action_words(params), job_id=job_id, variables={AUTHOR: author})
    finally:
        end_job(job_id)
    record: dict[str, Any] = json.loads(printed)
    return record


def require_own_run(params: Any, run_id: str) -> None:
    """Raise UserError if the run's params contain a recorded action that belongs to another run."""
    number = params.get("action_id")
    if number is not None and run_id != dag_run_id(int(number)):
        raise UserError(
            f"the recorded action {number} belongs to the run {dag_run_id(int(number))} only; request the action again "
            "on the page of the table, or start a run with table, action and parameters"
        )


def action_words(params: Any) -> list[str]:
    """Convert the params of a run to command arguments. Raise UserError if they contain no action."""
    if params.get("action_id") is not None:
        return ["action", "run", f"--id={int(params['action_id'])}", "--output=json"]
    missing = [name for name in ("table", "action") if not params.get(name)]
    if missing:
        raise UserError(f"the run's params contain no {missing[0]}; set table and action, or action_id")
    words = ["action", "run", f"--table={params['table']}", f"--action={params['action']}"]
    for name, value in (params.get("parameters") or {}).items():
        words += [f"--set={name}={part}" for part in (value if isinstance(value, list) else [value])]
    return [*words, "--output=json"]
