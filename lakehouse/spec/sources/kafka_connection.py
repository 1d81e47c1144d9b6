"""The settings of Kafka's client in an Airflow connection.

The connection has the type `kafka` of Airflow's Kafka provider: its extra holds settings of librdkafka, such as
`bootstrap.servers`, `security.protocol`, `sasl.username` and `sasl.password`. `schema.registry.url` and
`schema.registry.basic.auth.user.info` are the settings of the schema registry. Host, port, login and password of the
connection are used if the extra lacks them.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.errors import SettingError
from lakehouse.spec.secrets import connection_fields, connection_variable

SERVERS = "bootstrap.servers"
#: Settings with this prefix belong to the schema registry.
REGISTRY = "schema.registry."
#: Settings that a spec or a connection cannot set, because the source depends on them.
_RESERVED = {
    "group.id": "a run joins no consumer group",
    "enable.auto.commit": "offsets are stored in the commits of the table",
    "auto.offset.reset": "`reset` in `ingest` decides about deleted messages",
    "enable.partition.eof": "a run reads up to planned offsets",
    "isolation.level": "messages of open and of aborted transactions are never read",
}


def kafka_settings(connection: str, options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the client settings: first from the connection, then from the options of the spec.

    Raises:
        SettingError: The connection is unreadable, names no servers, or a setting cannot be set.
    """
    # A spec with its own servers needs no connection.
    has_connection = bool(environ.get(connection_variable(connection))) or SERVERS not in options
    settings = _of_connection(connection, environ) if has_connection else {}
    for name in options:
        if name in _RESERVED:
            raise SettingError(f"ingest.options: {name!r} cannot be set: {_RESERVED[name]}", setting=name)
    settings = {name: text for name, text in settings.items() if name not in _RESERVED} | dict(options)
    if not settings.get(SERVERS):
        raise SettingError(
            f"the connection {connection!r} has no {SERVERS!r}: add it to the extra of the connection",
            setting="ingest.connection",
        )
    return settings


def client_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without the ones for the schema registry."""
    return {name: text for name, text in settings.items() if not name.startswith(REGISTRY)}


def registry_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the schema registry without their prefix."""
    return {name.removeprefix(REGISTRY): text for name, text in settings.items() if name.startswith(REGISTRY)}


def _of_connection(connection: str, environ: Mapping[str, str]) -> dict[str, str]:
    fields = connection_fields(connection, environ, name="ingest.connection")
    extra = {str(name): _text(value) for name, value in fields.extra.items()}
    implied = {}
    if fields.host:
        implied[SERVERS] = f"{fields.host}:{fields.port}" if fields.port else fields.host
    if fields.login:
        implied["sasl.username"] = fields.login
    if fields.password:
        implied["sasl.password"] = fields.password
    return implied | extra


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
