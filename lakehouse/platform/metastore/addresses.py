"""Addresses of a metastore: as declared, or from an Airflow connection."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.errors import SettingError
from lakehouse.spec.options.sync import METASTORE_URIS
from lakehouse.spec.secrets import connection_fields, connections_of, resolve_secret

_PORT = 9083


def metastore_addresses(uris: str, environ: Mapping[str, str]) -> str:
    """Return addresses with a reference resolved: `airflow:<connection id>`, or variables in `${NAME}`.

    The host of a connection may be several hosts, comma separated; hosts without a port use its port, or 9083.
    Raises SettingError for a connection that is missing or has no host.
    """
    names = connections_of([uris])
    if not names:
        return resolve_secret(uris, environ, key=METASTORE_URIS)
    (name,) = names
    fields = connection_fields(name, environ, name=METASTORE_URIS)
    hosts = [host.strip() for host in fields.host.split(",") if host.strip()]
    if not hosts:
        raise SettingError(
            f"option {METASTORE_URIS}: the Airflow connection {name!r} has no host; enter the host of the metastore",
            setting=METASTORE_URIS,
        )
    plain = [host.rpartition("://")[2] for host in hosts]
    return ",".join(f"thrift://{host}" if ":" in host else f"thrift://{host}:{fields.port or _PORT}" for host in plain)
