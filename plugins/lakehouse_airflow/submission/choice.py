"""Select the submission of a task: by the argument `submission`, otherwise by the Airflow connection.

    connection of type      in its extra                         submission
    spark, host yarn        deploy-mode: cluster                 yarn
    spark, host k8s://...   deploy-mode: cluster                 kubernetes
    spark, otherwise                                             spark-submit on the host of the task
    kubernetes                                                   spark-operator
    livy                                                         livy
    aws, emr                lakehouse: {cluster_id: ...}         emr
    aws, emr                lakehouse: {application_id: ...}     emr-serverless
    google_cloud_platform   lakehouse: {cluster_name: ...}       dataproc
    databricks              lakehouse: {new_cluster: ...}        databricks

The settings of a submission are `lakehouse` in the extra of the connection, and the argument `submission` if it is a
mapping, which overrides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from lakehouse.errors import UserError, nearest
from lakehouse_airflow.submission.protocol import Submission, SubmissionChoice

#: The submission on the host of the task.
LOCAL = "spark-submit"
SETTINGS = "lakehouse"
#: Modules and classes of the submissions by name. They are imported when a task uses them.
_PACKAGE = "lakehouse_airflow.submission"
SUBMISSIONS: Mapping[str, tuple[str, str]] = {
    "yarn": (f"{_PACKAGE}.yarn", "YarnSubmission"),
    "kubernetes": (f"{_PACKAGE}.kubernetes", "KubernetesSubmission"),
    "spark-operator": (f"{_PACKAGE}.kubernetes", "SparkApplicationSubmission"),
    "livy": (f"{_PACKAGE}.livy", "LivySubmission"),
    "emr": (f"{_PACKAGE}.emr", "EmrSubmission"),
    "emr-serverless": (f"{_PACKAGE}.emr", "EmrServerlessSubmission"),
    "dataproc": (f"{_PACKAGE}.dataproc", "DataprocSubmission"),
    "databricks": (f"{_PACKAGE}.databricks", "DatabricksSubmission"),
}
#: Submissions whose command line is that of spark-submit on the host of the task.
BY_SPARK_SUBMIT = ("yarn", "kubernetes")
_BY_TYPE = {
    "kubernetes": "spark-operator",
    "livy": "livy",
    "google_cloud_platform": "dataproc",
    "databricks": "databricks",
}


def choose(given: str | Mapping[str, Any] | None, connection: Any, *, is_cluster: bool) -> SubmissionChoice | None:
    """Return the submission of a task; None for spark-submit on the host of the task.

    Args:
        given: Argument `submission` of the operator: a name, or a mapping of settings, which can contain `name`.
        connection: The Airflow connection, or None if it does not exist.
        is_cluster: Whether spark-submit runs in the deploy mode `cluster`.

    Raises:
        UserError: The name is unknown, or the connection does not fit.
    """
    own: dict[str, Any] = {"name": given} if isinstance(given, str) else dict(given or {})
    extra = {} if connection is None else connection.extra_dejson
    stored = extra.get(SETTINGS) or {}
    if not isinstance(stored, Mapping):
        raise UserError(f"{SETTINGS} in the extra of the connection {connection.conn_id!r} is not a JSON object")
    settings = {**_of_spark(connection, extra), **stored, **own}
    name = str(settings.pop("name", "") or _by_connection(connection, settings, is_cluster=is_cluster))
    if name == LOCAL:
        return None
    if name not in SUBMISSIONS:
        names = (LOCAL, *SUBMISSIONS)
        raise UserError(f"unknown submission {name!r}.{nearest(name, names)} Known are {', '.join(names)}.")
    if connection is None:
        raise UserError(f"the submission {name!r} needs an Airflow connection, and `conn_id` does not exist")
    return SubmissionChoice(name=name, connection=str(connection.conn_id), settings=settings)


def open_submission(choice: SubmissionChoice, program: Any = None) -> Submission:
    """Return the submission. `program` builds the command line of spark-submit; a trigger needs none."""
    module, name = SUBMISSIONS[choice.name]
    submission: Submission = getattr(import_module(module), name)(choice, program)
    return submission


def _of_spark(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that Spark's provider has in its own connection."""
    if connection is None or connection.conn_type != "spark" or not extra.get("namespace"):
        return {}
    return {"namespace": extra["namespace"]}


def _by_connection(connection: Any, settings: Mapping[str, Any], *, is_cluster: bool) -> str:
    kind = "spark" if connection is None else str(connection.conn_type)
    if kind in ("aws", "emr"):
        name = "emr" if settings.get("cluster_id") else "emr-serverless" if settings.get("application_id") else ""
        if name:
            return name
        raise UserError(
            f"the connection {connection.conn_id!r} has the type {kind}: add `cluster_id` (EMR) or `application_id` "
            f"(EMR Serverless) to {SETTINGS!r} in its extra",
            connection=connection.conn_id,
        )
    if kind in _BY_TYPE:
        return _BY_TYPE[kind]
    host = "" if connection is None else str(connection.host or "")
    if not is_cluster:
        return LOCAL
    if host.startswith("yarn"):
        return "yarn"
    if host.startswith("k8s") or kind == "k8s":
        return "kubernetes"
    raise UserError(
        f"the deploy mode cluster of the connection {connection.conn_id!r} needs the master yarn or k8s://, not "
        f"{host!r}: Spark's standalone master runs no Python drivers",
        connection=connection.conn_id,
    )
