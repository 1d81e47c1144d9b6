"""The catalog, as jobs are told of it: an Airflow connection, or the variables of the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException

CONNECTION = "lakehouse_catalog"
VARIABLE = "LAKEHOUSE_CATALOG"


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
