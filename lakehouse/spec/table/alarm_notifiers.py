"""The section `notifiers` of an alarm file: which notifier sends which alarms.

notifiers:
  data-team:
    type: slack                      slack, smtp, webhook, log, or the path of a class: package.module.Class
    severity: warning                at least of this severity
    scopes: [sales, web.clicks]      only of these namespaces and tables
    arguments: {slack_webhook_conn_id: data_team}
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.errors import nearest
from lakehouse.spec.contracts.fleet import Severity
from lakehouse.spec.secrets import is_secret
from lakehouse.spec.table.alarm_file import alarm_file, text_of_alarm_file
from lakehouse.spec.yaml_section import Section, read_section

#: Short names of the notifiers in Airflow's providers, and of the notifier that writes to the log.
TYPES = ("slack", "smtp", "webhook", "log")
_KEYS = ("type", "severity", "scopes", "arguments")
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_SEVERITIES = tuple(severity.name.lower() for severity in Severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierSpec:
    """A declared notifier.

    Attributes:
        name: Name under which the catalog records the sent alarms.
        type: One of `TYPES`, or the path of a class.
        severity: Minimum severity of its alarms.
        scopes: Namespaces and tables of its alarms; empty: all.
        arguments: Arguments of the class.
    """

    name: str
    type: str
    severity: Severity = Severity.INFO
    scopes: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)


def load_notifiers(environ: Mapping[str, str] = os.environ) -> tuple[NotifierSpec, ...]:
    """Return the notifiers in the user's file, or none if there is no file. See `parse_notifiers` for errors."""
    path = alarm_file(environ)
    return () if path is None else parse_notifiers(text_of_alarm_file(path), source=str(path))


def parse_notifiers(text: str, *, source: str) -> tuple[NotifierSpec, ...]:
    """Parse the notifiers in an alarm file.

    Raises UserError with file and line for an unknown type or key, and for an argument with a secret.
    """
    section = read_section(text, source=source, title="a file of alarm rules").section("notifiers", "notifiers")
    notifiers = []
    for name in section.nodes if section is not None else ():
        assert section is not None
        given = section.section(name, f"the notifier {name}")
        assert given is not None
        notifiers.append(_notifier(name, given))
    return tuple(notifiers)


def _notifier(name: str, given: Section) -> NotifierSpec:
    given.only(_KEYS)
    type_ = given.required("type")
    if type_ not in TYPES and not _CLASS.fullmatch(type_):
        raise given.error(
            f"type: {type_!r} is neither one of {', '.join(TYPES)} nor the path of a class.{nearest(type_, TYPES)}",
            "type",
        )
    arguments = given.plain("arguments")
    secret = next((key for key in arguments if is_secret(key)), None)
    if secret is not None:
        raise given.error(f"arguments: {secret!r} is a secret; put it into an Airflow connection.", "arguments")
    severity = given.choice("severity", _SEVERITIES, "info")
    return NotifierSpec(
        name=name,
        type=type_,
        severity=Severity[severity.upper()],
        scopes=given.names("scopes"),
        arguments=arguments,
    )
