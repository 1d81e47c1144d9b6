"""The catalog and its specs, as jobs are told of them: an Airflow connection, variables of the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseHook, get_current_context
from airflow.sdk.exceptions import AirflowException

from lakehouse.spec.secrets import connection_variable, connections_of
from lakehouse_airflow.specs import dags_folder, spec_directories

CONNECTION = "lakehouse_catalog"
VARIABLE = "LAKEHOUSE_CATALOG"
#: Ids of connections that every job is told.
CONNECTIONS = "LAKEHOUSE_CONNECTIONS"
#: What `lakehouse.cli.specs` reads; that module needs the database's driver, which Airflow's environment has not.
SYNC, AUTHOR = "LAKEHOUSE_SYNC_SPECS", "LAKEHOUSE_AUTHOR"


def catalog_variables(environ: Mapping[str, str], connection_id: str = CONNECTION) -> dict[str, str]:
    """Return the variable that names the catalog to a job; none if the job inherits it, or knows it by its home.

    The URL has a password, as a rule, so it is handed over in the environment and never as an argument.
    """
    if environ.get(VARIABLE):
        return {}
    try:
        connection = BaseHook.get_connection(connection_id)
    except AirflowException:
        return {}
    return {VARIABLE: catalog_url(connection)}


def connection_variables(environ: Mapping[str, str], values: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that tell a job the connections which options refer to as `airflow:<connection id>`.

    These are the ones in `values`, and those that `LAKEHOUSE_CONNECTIONS` lists for all jobs, comma separated. Those
    that the environment has already are inherited.
    """
    listed = [name.strip() for name in environ.get(CONNECTIONS, "").split(",") if name.strip()]
    wanted = dict.fromkeys([*listed, *connections_of(values)])
    missing = {name: variable for name in wanted if not environ.get(variable := connection_variable(name))}
    return {variable: catalog_url(BaseHook.get_connection(name)) for name, variable in missing.items()}


def spec_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a job puts the specs beside the DAGs in force, and says who did it.

    None where there are no specs. The author is the user who triggered the run, else the owner of the task.
    """
    folders = [str(folder.absolute()) for folder in spec_directories(dags_folder(environ), environ) if folder.is_dir()]
    if environ.get(SYNC) or not folders:
        return {}
    run = environ.get("AIRFLOW_CTX_DAG_ID", ""), environ.get("AIRFLOW_CTX_DAG_RUN_ID", "")
    user = _triggering_user() or environ.get("AIRFLOW_CTX_DAG_OWNER") or "airflow"
    return {SYNC: os.pathsep.join(folders), AUTHOR: f"{user} (Airflow, {'/'.join(run)})" if all(run) else user}


def _triggering_user() -> str | None:
    try:
        run = get_current_context().get("dag_run")
    except RuntimeError:
        # Outside of a task there is no run.
        return None
    return getattr(run, "triggering_user_name", None)


def catalog_url(connection: Any) -> str:
    """Return the URL for SQLAlchemy of an Airflow connection: its extra `url`, or what its fields say."""
    named = connection.extra_dejson.get("url")
    if named:
        return str(named)
    if connection.conn_type == "sqlite":
        return f"sqlite:///{connection.host}"
    user = quote(connection.login or "", safe="")
    password = f":{quote(connection.password, safe='')}" if connection.password else ""
    port = f":{connection.port}" if connection.port else ""
    return f"postgresql+psycopg://{user}{password}@{connection.host}{port}/{connection.schema or ''}"
