"""Secrets in options and URLs: what is one, how it is shown, and how a reference to one is resolved.

An option that is declared with `secret=True` holds a reference, resolved only where the secret is used:

    ${NAME}            the environment variable NAME; also as a part of a URL
    file:/path         the content of a file, such as a secret that Docker or Kubernetes mounts
    airflow:<conn_id>  an Airflow connection, which the operator hands to the job in AIRFLOW_CONN_<CONN_ID>

A reference, and a URL without a password, may be stored and shown. A password is refused in arguments of processes and
in specs. Whatever is written down or logged goes through `redact` or `redact_text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import re2

from lakehouse.errors import SettingError, UserError
from lakehouse.spec.options.declarations import declarations

HIDDEN = "***"
#: Names that no declaration covers: options of storage and of sources.
_SECRET_NAME = re.compile(
    r"(?:^|[._-])(?:password|passwd|pwd|secret|token|sas|private[._-]?key|secret[._-]?key|access[._-]?key"
    r"|access[._-]?key[._-]?id|account[._-]?key)(?:$|[._-])",
    re.IGNORECASE,
)
_SECRET_PARAMETER = re.compile(r"passw|pwd|secret|token|sas|private", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_FILE, _AIRFLOW = "file:", "airflow:"
# Texts come from tables, too, so both are searched by RE2 in time that is linear in the text. Greedy up to the last @
# of a word: a password may hold an @ that nobody quoted.
_USER_INFO = re2.compile(rb"([A-Za-z][\w+.-]*://[^\s:/@]*:)[^\s]*(@)")
_PARAMETER = re2.compile(
    rb"(?i)((?:[?&;][\w.-]*(?:passw|pwd|secret|token|sas|private)[\w.-]*|[?&;](?:[\w.-]*-)?sig(?:nature)?"
    rb"|\b(?:password|passwd|pwd)) ?=)[^&;\s'\"]+"
)
#: Secrets that this process resolved: drivers tell them in words of their own. Never written anywhere.
_resolved: set[str] = set()
#: Shorter ones, such as those of a test, would blot out parts of words.
_LEAST_SECRET = 6
_WAYS = "Write ${NAME} of an environment variable, file:/path, or airflow:<connection id>."


def is_secret(key: str) -> bool:
    """Return whether the value of an option is a secret: it is declared so, or its name says so."""
    return key in _declared() or _SECRET_NAME.search(key) is not None


def holds_secret(value: str) -> bool:
    """Return whether the value of a secret option gives a secret away: it is no reference, and no plain URL."""
    text = value.strip()
    if not text or text.startswith((_FILE, _AIRFLOW)):
        return False
    if "://" not in text:
        return _VARIABLE.fullmatch(text) is None
    # A variable may stand for any part of a URL.
    try:
        parsed = urlsplit(_VARIABLE.sub("", text))
        parameters = parse_qsl(parsed.query)
    except ValueError:
        return True
    return bool(parsed.password) or any(_SECRET_PARAMETER.search(name) and told for name, told in parameters)


def redact(value: Any, key: str = "") -> Any:
    """Return a value, or all values of a mapping or a list, as they may be stored and shown."""
    if isinstance(value, Mapping):
        # The names below `schema` are columns, such as `token`, and their values types.
        return {name: redact(told, "" if key == "schema" else str(name)) for name, told in value.items()}
    if isinstance(value, str):
        return HIDDEN if is_secret(key) and holds_secret(value) else redact_text(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [redact(told, key) for told in value]
    return value


def redact_text(text: str) -> str:
    """Return a message without the passwords of the URLs in it, and without secrets that this process has used."""
    data = text.encode("utf-8", "surrogatepass")
    shown: str = _PARAMETER.sub(rb"\1***", _USER_INFO.sub(rb"\1***\2", data)).decode("utf-8", "surrogatepass")
    for secret in sorted(_resolved, key=len, reverse=True):
        # As whole words: a password like `postgres` would blot out parts of others.
        shown = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, shown)
    return shown


def refuse_secrets(options: Mapping[str, Any], where: str) -> None:
    """Raise UserError, which does not show the value, if options that people can see give a secret away."""
    for key, value in options.items():
        if is_secret(key) and holds_secret(str(value)):
            raise SettingError(
                f"{where}: option {key} holds a secret, which everybody can read there. {_WAYS} A URL without a "
                "password is fine, too.",
                setting=key,
            )


def refuse_secret_url(url: str, where: str, instead: str) -> None:
    """Raise UserError, which does not show the URL, if it has a password."""
    if holds_secret(url):
        raise UserError(f"{where}: a URL with a password is readable there by everybody on this host. {instead}")


def resolve_secret(text: str, environ: Mapping[str, str], *, key: str) -> str:
    """Return the secret that a reference leads to; a text that is no reference is returned as it is.

    Raises UserError naming the variable, file or connection that is missing. The result is never to be stored, and
    `redact_text` hides it from now on.
    """
    found = _resolve(text.strip(), environ, key)
    _resolved.update(part for part in _parts(found) if len(part) >= _LEAST_SECRET)
    return found


def _parts(secret: str) -> Iterator[str]:
    """Yield what must not be shown of a resolved secret: the password of a URL as it is written and meant, or all."""
    if "://" not in secret:
        yield secret
        return
    # As in `_USER_INFO`, the last @ ends the password.
    login, at, _ = secret.partition("://")[2].rpartition("@")
    _, colon, password = login.partition(":")
    if at and colon:
        yield from (password, unquote(password))
    parameters = parse_qsl(secret.partition("?")[2])
    yield from (told for name, told in parameters if _SECRET_PARAMETER.search(name))


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
    """Return the ids of the Airflow connections that some values refer to."""
    found = (value.strip().removeprefix(_AIRFLOW) for value in values if value.strip().startswith(_AIRFLOW))
    return tuple(dict.fromkeys(found))


def connection_variable(connection_id: str) -> str:
    """Return the environment variable in which Airflow keeps a connection."""
    return f"AIRFLOW_CONN_{connection_id.upper()}"


def _connection(connection_id: str, environ: Mapping[str, str], key: str) -> str:
    variable = connection_variable(connection_id)
    told = environ.get(variable, "").strip()
    if not told:
        raise SettingError(
            f"option {key} names the Airflow connection {connection_id!r}, and {variable} is not set: the operator "
            "sets it for the connections of a spec file and for those in LAKEHOUSE_CONNECTIONS. Name it there, or set "
            "the variable.",
            setting=key,
        )
    if not told.startswith("{"):
        scheme, separator, rest = told.partition("://")
        return f"{_dialect(scheme)}{separator}{rest}"
    try:
        fields = json.loads(told)
        extra = fields.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
        return str(extra["url"]) if extra.get("url") else _url_of(fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        # The text may hold a password, so nothing of it is shown.
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
    """Return SQLAlchemy's name of a database that Airflow calls so; the driver is the one that is installed here."""
    return "postgresql+psycopg" if kind in ("postgres", "postgresql") else kind


@cache
def _declared() -> frozenset[str]:
    return frozenset(
        key for declared in declarations() if declared["secret"] for key in (declared["key"], *declared["aliases"])
    )
