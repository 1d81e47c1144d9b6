"""Convert Airflow connections with credentials of storages to the environment variables that jobs read.

    aws                       AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL,
                              AWS_ENDPOINT_URL_GLUE
    google_cloud_platform     GOOGLE_SERVICE_ACCOUNT_KEY
    wasb, adls                AZURE_STORAGE_ACCOUNT_NAME and its key, SAS token or client
    hdfs, webhdfs             HADOOP_USER_NAME, KRB5CCNAME, HADOOP_CONF_DIR

The variables are the environment of the job's process, never its arguments. On a cluster the driver gives them to its
executors (`lakehouse.spark.worker_credentials`). A connection without credentials gives no variables: the job then uses
the credentials of its host, such as an instance profile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lakehouse.errors import UserError

_Variables = dict[str, Any]


def storage_variables(connections: Iterable[Any]) -> dict[str, str]:
    """Return the variables of several connections; raise UserError for a type or a way of access without support.

    Two connections must not set one variable to different values: a job has one set of credentials per kind of storage.
    """
    merged: dict[str, tuple[str, str]] = {}
    for connection in connections:
        convert = _CONVERTERS.get(connection.conn_type)
        if convert is None:
            raise UserError(
                f"the connection {connection.conn_id!r} has the type {connection.conn_type!r}, which gives no access "
                f"to a storage; types are {', '.join(_CONVERTERS)}",
                connection=connection.conn_id,
            )
        for name, value in convert(connection, connection.extra_dejson).items():
            if not value:
                continue
            before, owner = merged.setdefault(name, (str(value), connection.conn_id))
            if before != str(value):
                raise UserError(
                    f"the connections {owner!r} and {connection.conn_id!r} both set {name}: a job has one set of "
                    "credentials per kind of storage. Remove one from LAKEHOUSE_STORAGE_CONNECTIONS",
                    connection=connection.conn_id,
                )
    return {name: value for name, (value, _) in merged.items()}


def _aws(connection: Any, extra: Mapping[str, Any]) -> _Variables:
    unsupported = sorted(key for key in ("role_arn", "profile_name", "assume_role_method") if extra.get(key))
    if unsupported:
        raise UserError(
            f"the connection {connection.conn_id!r} has {', '.join(unsupported)}, which a job cannot use: give it an "
            "access key, or leave the connection out and give the hosts an instance profile or a web identity",
            connection=connection.conn_id,
        )
    services = extra.get("service_config") or {}
    endpoint = (services.get("s3") or {}).get("endpoint_url") or extra.get("endpoint_url") or extra.get("host")
    return {
        "AWS_ACCESS_KEY_ID": connection.login or extra.get("aws_access_key_id"),
        "AWS_SECRET_ACCESS_KEY": connection.password or extra.get("aws_secret_access_key"),
        "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
        "AWS_REGION": extra.get("region_name"),
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ENDPOINT_URL_GLUE": (services.get("glue") or {}).get("endpoint_url"),
        "AWS_ALLOW_HTTP": "true" if str(endpoint or "").startswith("http://") else None,
    }


def _google(connection: Any, extra: Mapping[str, Any]) -> _Variables:
    key, path = _google_field(extra, "keyfile_dict"), _google_field(extra, "key_path")
    unsupported = [name for name in ("key_secret_name", "credential_config_file") if _google_field(extra, name)]
    if unsupported:
        raise UserError(
            f"the connection {connection.conn_id!r} has {', '.join(unsupported)}, which a job cannot use: give it "
            "keyfile_dict or key_path, or give the hosts a service account",
            connection=connection.conn_id,
        )
    if not key and path:
        try:
            key = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"the connection {connection.conn_id!r}: its key_path {path} cannot be read: {error.strerror}",
                connection=connection.conn_id,
            ) from None
    return {"GOOGLE_SERVICE_ACCOUNT_KEY": key if isinstance(key, str) or not key else json.dumps(key)}


def _google_field(extra: Mapping[str, Any], name: str) -> Any:
    # Connections of older versions of the provider have long names.
    return extra.get(name) or extra.get(f"extra__google_cloud_platform__{name}")


def _wasb(connection: Any, extra: Mapping[str, Any]) -> _Variables:
    parts = _connection_string(extra.get("connection_string"))
    tenant = extra.get("tenant_id")
    # With a tenant the login is a client, and the host names the account.
    client = {"AZURE_STORAGE_CLIENT_ID": connection.login, "AZURE_STORAGE_CLIENT_SECRET": connection.password}
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": parts.get("AccountName") or _account(connection.host) or connection.login,
        "AZURE_STORAGE_ACCOUNT_KEY": parts.get("AccountKey") or (None if tenant else connection.password),
        "AZURE_STORAGE_SAS_KEY": parts.get("SharedAccessSignature") or extra.get("sas_token"),
        "AZURE_STORAGE_TENANT_ID": tenant,
        **(client if tenant else {}),
    }


def _adls(connection: Any, extra: Mapping[str, Any]) -> _Variables:
    if extra.get("connection_string"):
        return _wasb(connection, extra)
    tenant = extra.get("tenant_id") or extra.get("tenant")
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": _account(connection.host) or extra.get("account_name"),
        "AZURE_STORAGE_ACCOUNT_KEY": None if tenant else connection.password,
        "AZURE_STORAGE_CLIENT_ID": connection.login if tenant else None,
        "AZURE_STORAGE_CLIENT_SECRET": connection.password if tenant else None,
        "AZURE_STORAGE_TENANT_ID": tenant,
    }


def _hdfs(connection: Any, extra: Mapping[str, Any]) -> _Variables:
    return {
        "HADOOP_USER_NAME": connection.login,
        "HADOOP_CONF_DIR": extra.get("hadoop_conf_dir"),
        "KRB5CCNAME": extra.get("ticket_cache"),
    }


def _account(host: str | None) -> str:
    """Return the account in `https://account.blob.core.windows.net` or `account`."""
    return (host or "").rpartition("://")[2].partition(".")[0].strip("/")


def _connection_string(text: str | None) -> dict[str, str]:
    pairs = (part.partition("=") for part in (text or "").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs if value}


_CONVERTERS: dict[str, Callable[[Any, Mapping[str, Any]], _Variables]] = {
    "aws": _aws,
    "google_cloud_platform": _google,
    "wasb": _wasb,
    "adls": _adls,
    "azure_data_lake": _adls,
    "hdfs": _hdfs,
    "webhdfs": _hdfs,
}
