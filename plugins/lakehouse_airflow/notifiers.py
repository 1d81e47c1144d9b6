"""Sends alarms with the notifiers of Airflow's providers, with many alarms in one message.

Every notifier of Airflow (`BaseNotifier`) can send alarms. In its templated fields the `AlarmMessage` is available as
`alarms`:

    SmtpNotifier(to="data@example.com", subject="{{ alarms.subject }}", html_content="{{ alarms.html }}")

`slack_notifier`, `smtp_notifier` and `webhook_notifier` return notifiers of the providers with such templates. The
providers are optional: apache-airflow-providers-slack, -smtp and -http.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from types import MappingProxyType
from typing import Any

from lakehouse.spec.contracts.alarms import AlarmEntry, AlarmEvent, AlarmList
from lakehouse.spec.contracts.fleet import Severity
from lakehouse_airflow.compat import AirflowFailException, BaseNotifier, Context

_MOST_LINES = 30
_WORDS = {AlarmEvent.OPEN: "new", AlarmEvent.RESOLVED: "resolved"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmMessage:
    """One message about new and resolved alarms, sorted by descending severity.

    `claimed` is the id of the message in the catalog. `attempt` is 2 if the first sender ended before it recorded the
    outcome. The receiver may then have received the message before.
    """

    alarms: tuple[AlarmEntry, ...]
    claimed: str = ""
    attempt: int = 1

    @classmethod
    def of(cls, alarms: Sequence[AlarmEntry], *, claimed: str = "", attempt: int = 1) -> AlarmMessage:
        """Build the message for alarms."""
        ordered = sorted(alarms, key=lambda one: (one.state != AlarmEvent.OPEN, -one.severity, one.table, one.rule))
        return cls(alarms=tuple(ordered), claimed=claimed, attempt=attempt)

    @property
    def id(self) -> str:
        """Id of the message. A receiver can use it to drop a repeated message."""
        if self.claimed:
            return self.claimed
        key = ",".join(f"{one.id}:{one.state}" for one in sorted(self.alarms, key=lambda one: one.id))
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    @property
    def severity(self) -> str:
        """The maximum severity of the new alarms; `info` if all alarms are resolved."""
        worst = max((one.severity for one in self.alarms if one.state == AlarmEvent.OPEN), default=Severity.INFO)
        return worst.name.lower()

    @property
    def subject(self) -> str:
        """Subject line: the numbers of new and resolved alarms, and the first new alarm."""
        counts = Counter(_WORDS[one.state] for one in self.alarms)
        numbers = ", ".join(f"{count} {word}" for word, count in counts.items())
        first = self.alarms[0]
        again = " (repeated)" if self.attempt > 1 else ""
        return f"lakehouse{again}: {numbers} alarms: {first.table}: {_one_line(first.text)}"[:200]

    @property
    def text(self) -> str:
        """The first 30 alarms, one per line."""
        lines = [_line(one) for one in self.alarms[:_MOST_LINES]]
        rest = len(self.alarms) - len(lines)
        return "\n".join([*lines, *([f"... and {rest} more: lakehouse alarms list"] if rest else [])])

    @property
    def html(self) -> str:
        """The alarms as an HTML table."""
        rows = "".join(
            f"<tr><td>{escape(_WORDS[one.state])}</td><td>{escape(one.severity.name.lower())}</td>"
            f"<td>{escape(one.table)}</td><td>{escape(one.text)}</td><td>{escape(one.action)}</td></tr>"
            for one in self.alarms
        )
        heads = "".join(f"<th align='left'>{name}</th>" for name in ("state", "severity", "table", "problem", "action"))
        return f"<table><tr>{heads}</tr>{rows}</table>"

    @property
    def json(self) -> str:
        """The alarms as a JSON document (`AlarmList`) with the `id`, `subject` and `severity` of the message."""
        document = AlarmList(alarms=self.alarms).to_mapping()
        return json.dumps({"id": self.id, "subject": self.subject, "severity": self.severity, **document})


class LogNotifier(BaseNotifier):
    """Example notifier that writes alarms to the task log.

    Args:
        text: Template of the log message.
    """

    template_fields = ("text",)

    def __init__(self, text: str = "{{ alarms.text }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text = text

    def notify(self, context: Context) -> None:
        """Write the rendered message to the log."""
        self.log.warning("%s", self.text)


def slack_notifier(**arguments: Any) -> BaseNotifier:
    """Return a notifier of the Slack provider. With `channel` it calls the Slack API, otherwise an incoming webhook.

    Args:
        arguments: Arguments of SlackNotifier or SlackWebhookNotifier, such as `slack_webhook_conn_id` or `channel`.
    """
    name = "slack.SlackNotifier" if "channel" in arguments else "slack_webhook.SlackWebhookNotifier"
    notifier = _provider_class("slack", f"airflow.providers.slack.notifications.{name}")
    return notifier(**{"text": "*{{ alarms.subject }}*\n{{ alarms.text }}", **arguments})


def smtp_notifier(**arguments: Any) -> BaseNotifier:
    """Return a notifier of the SMTP provider.

    Args:
        arguments: Arguments of SmtpNotifier: `to`, and for example `from_email` and `smtp_conn_id`.
    """
    notifier = _provider_class("smtp", "airflow.providers.smtp.notifications.smtp.SmtpNotifier")
    # Mail servers and clients drop repeated messages with the same Message-ID.
    headers = {"Message-ID": "<{{ alarms.id }}@lakehouse>"}
    texts = {"subject": "{{ alarms.subject }}", "html_content": "{{ alarms.html }}", "custom_headers": headers}
    return notifier(**{**texts, **arguments})


def webhook_notifier(**arguments: Any) -> BaseNotifier:
    """Return a notifier of the HTTP provider that posts the alarms as JSON.

    Args:
        arguments: Arguments of HttpNotifier, such as `http_conn_id` and `endpoint`.
    """
    notifier = _provider_class("http", "airflow.providers.http.notifications.http.HttpNotifier")
    headers = {"Content-Type": "application/json", "Idempotency-Key": "{{ alarms.id }}"}
    return notifier(**{"data": "{{ alarms.json }}", "headers": headers, **arguments})


#: Notifier builders by the value of `type` in alarms.yaml.
BUILDERS: Mapping[str, Callable[..., BaseNotifier]] = MappingProxyType(
    {"slack": slack_notifier, "smtp": smtp_notifier, "webhook": webhook_notifier, "log": LogNotifier}
)


def notifier_of(type_: str, arguments: Mapping[str, Any]) -> BaseNotifier:
    """Build a notifier. Its type is a name in `BUILDERS` or the import path of a class.

    Raises AirflowFailException if its provider or its class is missing, or if an argument is wrong.
    """
    build = BUILDERS.get(type_) or _class_at(type_)
    try:
        return build(**arguments)
    except TypeError as error:
        raise AirflowFailException(f"the notifier {type_}: {error}; correct its arguments in alarms.yaml") from error


def send(notifier: BaseNotifier, message: AlarmMessage, context: Mapping[str, Any]) -> None:
    """Send a message with a notifier; its templates can use the message as `alarms`. Raise the notifier's error.

    A call in the way of Airflow's callbacks would only log the error.
    """
    words: Any = {**context, "alarms": message}
    # Rendering replaces the templates, so a copy is rendered.
    mine = copy.copy(notifier)
    mine.render_template_fields(words)
    mine.notify(words)


def _provider_class(provider: str, path: str) -> Callable[..., BaseNotifier]:
    try:
        return _class_at(path)
    except ModuleNotFoundError as error:
        raise AirflowFailException(
            f"a notifier of type {provider!r} needs the package {error.name!r}: pip install "
            f"apache-airflow-providers-{provider}"
        ) from error


def _class_at(path: str) -> Callable[..., BaseNotifier]:
    module, _, name = path.rpartition(".")
    notifier: Callable[..., BaseNotifier] | None = getattr(import_module(module), name, None)
    if notifier is None:
        raise AirflowFailException(f"the module {module} has no notifier {name!r}; correct `type` in alarms.yaml")
    return notifier


def _line(alarm: AlarmEntry) -> str:
    if alarm.state == AlarmEvent.RESOLVED:
        return f"resolved: {alarm.table}: {_one_line(alarm.text)}"
    action = f" -> {_one_line(alarm.action)}" if alarm.action else ""
    return f"{alarm.severity.name.lower()}: {alarm.table}: {_one_line(alarm.text)}{action}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
