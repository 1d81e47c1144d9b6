"""Detect, hide and resolve secrets in options and URLs.

An option that is declared with `secret=True` contains a reference, which is resolved only where the secret is used:

    ${NAME}            the environment variable NAME; also as a part of a URL
    file:/path         the content of a file, such as a secret that Docker or Kubernetes mounts
    airflow:<conn_id>  an Airflow connection, which the operator passes to the job in AIRFLOW_CONN_<CONN_ID>

References and URLs without password may be stored and shown. Passwords are refused in process arguments and in specs.
All stored and logged strings pass `redact` or `redact_text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import re2

from lakehouse.errors import SettingError, UserError
from lakehouse.spec.options.declarations import declarations

HIDDEN = "***"
#: Parts of option names that indicate a secret, for undeclared options of storage and sources.
_SECRET_NAME = re.compile(
    r"(?:^|[._-])(?:password|passwd|pwd|secret|token|sas|private[._-]?key|secret[._-]?key|access[._-]?key"
    r"|access[._-]?key[._-]?id|account[._-]?key)(?:$|[._-])",
    re.IGNORECASE,
)
_SECRET_PARAMETER = re.compile(r"passw|pwd|secret|token|sas|private", re.IGNORECASE)
#: Matches a URL with user and password, and a URL with a secret parameter.
_LOGIN = re.compile(r"://[^\s:/@]*:[^\s/]+@")
_URL_PARAMETER = re.compile(r"[?&;][\w.-]*(?:passw|pwd|secret|token|sas|private)[\w.-]*=[^&;\s]", re.IGNORECASE)
#: Names of undeclared storage options that contain the address of a server.
_HOST_NAME = re.compile(r"(?:^|[._-])endpoint(?:[._-]ur[il])?$", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_FILE, _AIRFLOW = "file:", "airflow:"
# Input also comes from tables, so RE2 evaluates both patterns in linear time. The user part is greedy up to the last @
# of a word, because a password may contain an unquoted @.
_USER_INFO = re2.compile(rb"([A-Za-z][\w+.-]*://[^\s:/@]*:)[^\s]*(@)")
_PARAMETER = re2.compile(
    rb"(?i)((?:[?&;][\w.-]*(?:passw|pwd|secret|token|sas|private)[\w.-]*|[?&;](?:[\w.-]*-)?sig(?:nature)?"
    rb"|\b(?:password|passwd|pwd)) ?=)[^&;\s'\"]+"
)
#: Secrets that this process resolved. Messages of drivers may contain them, so they are hidden. Never stored.
_resolved: set[str] = set()
#: Minimum length of a hidden secret. Shorter secrets, as in tests, would hide parts of other words.
_LEAST_SECRET = 6
_WAYS = "Write ${NAME} of an environment variable, file:/path, or airflow:<connection id>."


def is_secret(key: str) -> bool:
    """Return whether the value of an option is a secret, by its declaration or by its name."""
    return key in _declared() or _SECRET_NAME.search(key) is not None


def holds_secret(value: str) -> bool:
    """Return whether the value of a secret option contains the secret itself instead of a reference."""
    text = value.strip()
    if not text or text.startswith((_FILE, _AIRFLOW)):
        return False
    if "://" not in text:
        return _VARIABLE.fullmatch(text) is None
    # A variable may replace any part of a URL.
    try:
        parsed = urlsplit(_VARIABLE.sub("", text))
        parameters = parse_qsl(parsed.query)
    except ValueError:
        return True
    return bool(parsed.password) or any(_SECRET_PARAMETER.search(name) and text for name, text in parameters)


def redact(value: Any, key: str = "") -> Any:
    """Return a value without secrets, so that it may be stored and shown; mappings and lists are searched."""
    if isinstance(value, Mapping):
        # Below `schema`, names are columns, which may be called `token`, and values are types.
        return {name: redact(item, "" if key == "schema" else str(name)) for name, item in value.items()}
    if isinstance(value, str):
        return HIDDEN if is_secret(key) and holds_secret(value) else redact_text(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [redact(item, key) for item in value]
    return value


def redact_text(text: str) -> str:
    """Return a message without passwords of URLs and without secrets that this process resolved."""
    data = text.encode("utf-8", "surrogatepass")
    shown: str = _PARAMETER.sub(rb"\1***", _USER_INFO.sub(rb"\1***\2", data)).decode("utf-8", "surrogatepass")
    for secret in sorted(_resolved, key=len, reverse=True):
        # Whole words only: a password such as `postgres` would hide parts of other words.
        shown = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, shown)
    return shown


def has_password(value: str) -> bool:
    """Return whether a string contains a URL with a password, for any option."""
    text = _VARIABLE.sub("", value)
    return "://" in text and (_LOGIN.search(text) is not None or _URL_PARAMETER.search(text) is not None)


def refuse_secrets(options: Mapping[str, Any], where: str) -> None:
    """Raise SettingError if a visible option contains a secret. The message omits the value."""
    for key, value in options.items():
        if has_password(str(value)) or (is_secret(key) and holds_secret(str(value))):
            raise SettingError(
                f"{where}: option {key} contains a secret, which other users can read there. {_WAYS} A URL without a "
                "password is also accepted.",
                setting=key,
            )


def refuse_hosts(options: Mapping[str, Any], where: str) -> None:
    """Raise SettingError if an option contains a server address instead of an Airflow connection.

    The message omits the value.

    Jobs connect to the server with the rights of the deployment, so a user with the right to edit one service must not
    choose it.
    """
    hosts = {key for option in declarations() if option["host"] for key in (option["key"], *option["aliases"])}
    for key, value in options.items():
        named = key in hosts or _HOST_NAME.search(key) is not None
        if named and str(value).strip() and not str(value).strip().startswith(_AIRFLOW):
            raise SettingError(
                f"{where}: option {key} names a server, to which jobs would connect with the rights of the deployment. "
                "Write airflow:<connection id> of a connection in LAKEHOUSE_CONNECTIONS, or declare the server in the "
                "table's spec",
                setting=key,
            )


def refuse_in_policy(options: Mapping[str, Any]) -> None:
    """Raise SettingError for a secret, and for a server that is not an Airflow connection, in a policy."""
    where = "a policy of the catalog"
    refuse_secrets(options, where)
    refuse_hosts(options, where)


def refuse_secret_url(url: str, where: str, instead: str) -> None:
    """Raise UserError if a URL contains a password. The message omits the URL."""
    if holds_secret(url):
        raise UserError(f"{where}: a URL with a password is readable there by all users of this host. {instead}")


def resolve_secret(text: str, environ: Mapping[str, str], *, key: str) -> str:
    """Return the secret of a reference; other strings are returned unchanged.

    The result must never be stored, and `redact_text` hides it from now on. Raises SettingError with the variable, file
    or connection that is missing.
    """
    secret = _resolve(text.strip(), environ, key)
    _resolved.update(part for part in _parts(secret) if len(part) >= _LEAST_SECRET)
    return secret


def _parts(secret: str) -> Iterator[str]:
    """Yield the strings to hide for a secret: the password of a URL, quoted and unquoted, or the whole secret."""
    if "://" not in secret:
        yield secret
        return
    # As in `_USER_INFO`, the last @ ends the password.
    login, at, _ = secret.partition("://")[2].rpartition("@")
    _, colon, password = login.partition(":")
    if at and colon:
        yield from (password, unquote(password))
    parameters = parse_qsl(secret.partition("?")[2])
    yield from (text for name, text in parameters if _SECRET_PARAMETER.search(name))


def _resolve(plain: str, environ: Mapping[str, str], key: str) -> str:
    if plain.startswith(_FILE):
        path = plain.removeprefix(_FILE)
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"option {key}: the file {path!r} cannot be read: {error}", setting=key) from None
    if plain.startswith(_AIRFLOW):
        return _connection(plain.removeprefix(_AIRFLOW), environ, key)

    def value(match: re.Match[str]) -> str:
        if not environ.get(match[1]):
            raise SettingError(f"option {key} needs the environment variable {match[1]}, which is not set", setting=key)
        return environ[match[1]]

    return _VARIABLE.sub(value, plain)


def connections_of(values: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the Airflow connections in the values."""
    ids = (value.strip().removeprefix(_AIRFLOW) for value in values if value.strip().startswith(_AIRFLOW))
    return tuple(dict.fromkeys(ids))


def connection_variable(connection_id: str) -> str:
    """Return the environment variable in which Airflow keeps a connection."""
    return f"AIRFLOW_CONN_{connection_id.upper()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFields:
    """The fields of an Airflow connection; missing fields are empty strings. `kind` is the type of the connection."""

    kind: str = ""
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


def connection_fields(connection_id: str, environ: Mapping[str, str], *, name: str) -> ConnectionFields:
    """Return the fields of an Airflow connection, from its URL or JSON in its environment variable.

    `redact_text` hides its password and the secrets in its extra from now on. Raises SettingError, which starts with
    the setting `name`, if the variable is not set or unreadable.
    """
    variable = connection_variable(connection_id)
    text = environ.get(variable, "").strip()
    if not text:
        raise SettingError(
            f"{name} names the Airflow connection {connection_id!r}, and {variable} is not set: Airflow's operator "
            "sets it if the connection exists. Create the connection, or set the variable to its JSON",
            setting=name,
        )
    try:
        fields = _fields_of_json(text) if text.startswith("{") else _fields_of_url(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        # The value may contain a password, so no part of it is shown.
        raise SettingError(f"{name}: {variable} is neither a URL nor a connection in JSON", setting=name) from None
    hidden = [fields.password, *(str(value) for key, value in fields.extra.items() if _hides(key))]
    _resolved.update(part for part in hidden if len(part) >= _LEAST_SECRET)
    return fields


def _hides(key: str) -> bool:
    return is_secret(key) or any(part in key.lower() for part in ("user.info", ".pem", "jaas"))


def _fields_of_json(text: str) -> ConnectionFields:
    fields = json.loads(text)
    extra = fields.get("extra") or {}
    return ConnectionFields(
        kind=str(fields.get("conn_type") or ""),
        host=str(fields.get("host") or ""),
        port=int(fields["port"]) if fields.get("port") else None,
        login=str(fields.get("login") or ""),
        password=str(fields.get("password") or ""),
        schema=str(fields.get("schema") or ""),
        extra=dict(json.loads(extra) if isinstance(extra, str) else extra),
    )


def _fields_of_url(text: str) -> ConnectionFields:
    url = urlsplit(text)
    parameters = dict(parse_qsl(url.query, strict_parsing=bool(url.query)))
    extra = json.loads(parameters.pop("__extra__", "{}"))
    return ConnectionFields(
        kind=url.scheme,
        host=unquote(url.hostname or ""),
        port=url.port,
        login=unquote(url.username or ""),
        password=unquote(url.password or ""),
        schema=unquote(url.path.lstrip("/")),
        extra={**extra, **parameters},
    )


def _connection(connection_id: str, environ: Mapping[str, str], key: str) -> str:
    variable = connection_variable(connection_id)
    text = environ.get(variable, "").strip()
    if not text:
        raise SettingError(
            f"option {key} names the Airflow connection {connection_id!r}, and {variable} is not set: the operator "
            "sets it for the connections of a spec file and for those in LAKEHOUSE_CONNECTIONS. Name it there, or set "
            "the variable.",
            setting=key,
        )
    if not text.startswith("{"):
        scheme, separator, rest = text.partition("://")
        return f"{_dialect(scheme)}{separator}{rest}"
    try:
        fields = json.loads(text)
        extra = fields.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
        return str(extra["url"]) if extra.get("url") else _url_of(fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        # The value may contain a password, so no part of it is shown.
        raise SettingError(f"option {key}: {variable} is neither a URL nor a connection in JSON", setting=key) from None


def _url_of(fields: Mapping[str, Any]) -> str:
    kind = str(fields["conn_type"])
    if kind == "sqlite":
        return f"sqlite:///{fields['host']}"
    user = quote(str(fields.get("login") or ""), safe="")
    password = f":{quote(str(fields['password']), safe='')}" if fields.get("password") else ""
    port = f":{fields['port']}" if fields.get("port") else ""
    return f"{_dialect(kind)}://{user}{password}@{fields['host']}{port}/{fields.get('schema') or ''}"


def _dialect(kind: str) -> str:
    """Return SQLAlchemy's name for a database type of Airflow, with the installed driver."""
    return "postgresql+psycopg" if kind in ("postgres", "postgresql") else kind


@cache
def _declared() -> frozenset[str]:
    return frozenset(
        key for declared in declarations() if declared["secret"] for key in (declared["key"], *declared["aliases"])
    )
