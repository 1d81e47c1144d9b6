"""A policy of Airflow: tasks of lakehouse run on the queue of their kind, so that each kind can have its own worker.

Airflow imports this module from a folder on PYTHONPATH, such as `/opt/airflow/config` in its image. A task with another
queue than the default keeps it.
"""

from __future__ import annotations

from typing import Any

#: The queue of the tasks of a DAG by the first part of the DAG id.
QUEUES = {"ingest": "ingest", "services": "services", "publish": "publish"}
DEFAULT = "default"


def task_policy(task: Any) -> None:
    """Set the queue of a task when its DAG is parsed."""
    queue = QUEUES.get(task.dag_id.partition(".")[0])
    if queue is not None and task.queue == DEFAULT:
        task.queue = queue
