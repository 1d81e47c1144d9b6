"""Environment variables of jobs: the catalog, connections with secrets, and the folders of table specs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from lakehouse.spec.secrets import connection_variable, connections_of
from lakehouse.spec.table.table_spec import TableSpec
from lakehouse_airflow.compat import AirflowException, BaseHook, get_current_context
from lakehouse_airflow.specs import folders_of_dag
from lakehouse_airflow.storage_connections import storage_variables

CATALOG_CONNECTION = "lakehouse_catalog"
CATALOG_VARIABLE = "LAKEHOUSE_CATALOG"
#: Comma-separated ids of the connections that every job gets.
CONNECTIONS = "LAKEHOUSE_CONNECTIONS"
#: Comma-separated ids of the connections with the credentials of storages.
STORAGE_CONNECTIONS = "LAKEHOUSE_STORAGE_CONNECTIONS"
#: Variables with secrets in the environment of Airflow's processes.
_INHERITED = re.compile(r"(AWS|GOOGLE|AZURE)_\w+|LAKEHOUSE_CATALOG(_\w+)?")
#: Types of connections whose extra contains settings of a client library.
_AS_JSON = ("kafka", "mysql", "hive_metastore")
#: TLS settings in the extra of a PostgreSQL connection, with libpq's names.
_TLS = ("sslmode", "sslrootcert")
#: Variables that `lakehouse.cli.specs` reads. Their names are repeated here, because that module needs the database
#: driver, which Airflow's environment does not have.
SYNC, AUTHOR = "LAKEHOUSE_SYNC_SPECS", "LAKEHOUSE_AUTHOR"


def catalog_variables(environ: Mapping[str, str], connection_id: str = CATALOG_CONNECTION) -> dict[str, str]:
    """Return the environment variable with the catalog's URL.

    The result is empty if the job inherits the variable, or if the connection does not exist. In the latter case the
    job uses its default catalog. The URL usually contains a password, so it is never an argument of a process.
    """
    if environ.get(CATALOG_VARIABLE):
        return {}
    try:
        connection = BaseHook.get_connection(connection_id)
    except AirflowException:
        return {}
    return {CATALOG_VARIABLE: catalog_url(connection)}


def connection_variables(environ: Mapping[str, str], values: Iterable[str] = ()) -> dict[str, str]:
    """Return environment variables with connection URLs, for options that refer to them as `airflow:<connection id>`.

    Included are the connections in the option `values`, the connections in `LAKEHOUSE_CONNECTIONS` for all jobs, and
    the credentials of the connections in `LAKEHOUSE_STORAGE_CONNECTIONS`, as variables of their storages. Variables
    that the environment already contains are inherited, so they are not returned.
    """
    listed = [name.strip() for name in environ.get(CONNECTIONS, "").split(",") if name.strip()]
    names = dict.fromkeys([*listed, *connections_of(values)])
    missing = {name: variable for name in names if not environ.get(variable := connection_variable(name))}
    variables = {variable: _connection_text(BaseHook.get_connection(name)) for name, variable in missing.items()}
    return {**_storage_variables(environ), **variables}


def _storage_variables(environ: Mapping[str, str]) -> dict[str, str]:
    names = [name.strip() for name in environ.get(STORAGE_CONNECTIONS, "").split(",") if name.strip()]
    variables = storage_variables(BaseHook.get_connection(name) for name in names)
    return {name: value for name, value in variables.items() if not environ.get(name)}


def driver_secrets(environ: Mapping[str, str], values: Iterable[str] = ()) -> dict[str, str]:
    """Return the secrets of a job whose driver runs on another host, where it inherits no variable of this process.

    These are the catalog, the connections as in `connection_variables`, and the storage credentials in the environment.
    """
    lists = {name: environ[name] for name in (CONNECTIONS, STORAGE_CONNECTIONS) if name in environ}
    inherited = {name: value for name, value in environ.items() if value and _INHERITED.fullmatch(name)}
    return {**connection_variables(lists, values), **inherited, **catalog_variables(environ)}


def spec_references(spec: TableSpec) -> list[str]:
    """Return the values of a spec that may refer to connections: its options, and the connection ids of its source."""
    ingests = [one.ingest for one in spec.ingestions if one.ingest is not None]
    of_sources = dict.fromkeys(name for ingest in ingests for name in ingest.source.connections)
    return [*spec.options.values(), *(f"airflow:{name}" for name in of_sources)]


def _connection_text(connection: Any) -> str:
    """Format a connection as the value of its variable: JSON if it is a source connection, otherwise a URL."""
    if connection.conn_type not in _AS_JSON:
        return catalog_url(connection)
    names = ("conn_type", "host", "login", "password", "port", "schema")
    fields = {name: value for name in names if (value := getattr(connection, name))}
    return json.dumps({**fields, "extra": connection.extra_dejson})


def spec_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a job registers the specs of its DAG in the catalog with an author.

    The result is empty if there are no specs. The author is the user that triggered the run, otherwise the owner of the
    task.
    """
    own_folders = folders_of_dag(environ.get("AIRFLOW_CTX_DAG_ID"), environ)
    folders = [str(folder.absolute()) for folder in own_folders if folder.is_dir()]
    if environ.get(SYNC) or not folders:
        return {}
    run = environ.get("AIRFLOW_CTX_DAG_ID", ""), environ.get("AIRFLOW_CTX_DAG_RUN_ID", "")
    user = _triggering_user() or environ.get("AIRFLOW_CTX_DAG_OWNER") or "airflow"
    return {SYNC: os.pathsep.join(folders), AUTHOR: f"{user} (Airflow, {'/'.join(run)})" if all(run) else user}


def _triggering_user() -> str | None:
    try:
        run = get_current_context().get("dag_run")
    except (RuntimeError, AirflowException):
        # Outside of a task there is no run, and so no triggering user.
        return None
    return getattr(run, "triggering_user_name", None)


def catalog_url(connection: Any) -> str:
    """Return the SQLAlchemy URL of an Airflow connection: its extra `url`, otherwise a URL built from its fields."""
    url = connection.extra_dejson.get("url")
    if url:
        return str(url)
    if connection.conn_type == "sqlite":
        return f"sqlite:///{connection.host}"
    user = quote(connection.login or "", safe="")
    password = f":{quote(connection.password, safe='')}" if connection.password else ""
    port = f":{connection.port}" if connection.port else ""
    tls = {name: connection.extra_dejson[name] for name in _TLS if connection.extra_dejson.get(name)}
    query = f"?{urlencode(tls)}" if tls else ""
    return f"postgresql+psycopg://{user}{password}@{connection.host}{port}/{connection.schema or ''}{query}"
