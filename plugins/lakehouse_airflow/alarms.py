"""Airflow tasks that send new and resolved alarms with the notifiers declared in `alarms.yaml`.

    claim ──► send ──► settle       for each notifier; the catalog records the alarms that each notifier has sent

A message is sent at most twice. It is sent twice only if a task ended after it sent the message and before it recorded
that. The second message has the same id. The next run of the task sends it after the lease of the first claim has
expired.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from lakehouse.errors import UserError
from lakehouse.spec.contracts.alarms import AlarmList
from lakehouse.spec.table.alarm_file import VARIABLE
from lakehouse.spec.table.alarm_notifiers import NotifierSpec, load_notifiers
from lakehouse_airflow.commands import run_command
from lakehouse_airflow.compat import AirflowException, AirflowFailException, task
from lakehouse_airflow.notifiers import AlarmMessage, notifier_of, send
from lakehouse_airflow.specs import DIRECTORIES, dags_folder, spec_directories

log = logging.getLogger(__name__)


def alarm_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that locate the user's alarm rules.

    By default these are in the folder of table specs.
    """
    if environ.get(VARIABLE) or environ.get(DIRECTORIES):
        return {name: environ[name] for name in (VARIABLE, DIRECTORIES) if environ.get(name)}
    return {DIRECTORIES: os.pathsep.join(map(str, spec_directories(dags_folder(environ), environ)))}


def send_pending(notifiers: Sequence[NotifierSpec], context: Mapping[str, Any]) -> dict[str, int]:
    """Send with each notifier the alarms that it has not sent yet. Return the number of alarms by notifier.

    A retried task only sends the remaining alarms. If one notifier fails, the others still send.

    Args:
        notifiers: The notifiers.
        context: Airflow's context of the task.

    Raises:
        AirflowException: A notifier failed. The next try or run of the task sends its alarms.
    """
    sent, errors = dict[str, int](), list[str]()
    for spec in notifiers:
        try:
            sent[spec.name] = _send_with(spec, context)
        # Each provider has its own exception classes, so all exceptions are caught.
        except Exception as error:
            log.exception("the notifier %s failed", spec.name)
            errors.append(f"{spec.name}: {type(error).__name__}: {error}")
    if errors:
        raise AirflowException(f"{len(errors)} of {len(notifiers)} notifiers failed: {'; '.join(errors)}")
    return sent


@task(task_id="send_alarms")
def send_alarms(notifiers: Sequence[NotifierSpec] | None = None, **context: Any) -> dict[str, int]:
    """Task: send new and resolved alarms once with each notifier. Default: the notifiers of `alarms.yaml`.

    Returns the number of alarms by notifier.
    """
    try:
        channels = load_notifiers(alarm_variables(os.environ)) if notifiers is None else tuple(notifiers)
    except UserError as error:
        raise AirflowFailException(str(error)) from error
    if not channels:
        log.info("no notifier is declared: add a section `notifiers` to alarms.yaml next to the folder of table specs")
    return send_pending(channels, context)


def _send_with(spec: NotifierSpec, context: Mapping[str, Any]) -> int:
    notifier = notifier_of(spec.type, spec.arguments)
    sender = ["--notifier", spec.name, "--owner", _owner(context)]
    chosen = ["--severity", spec.severity.name.lower(), *(word for scope in spec.scopes for word in ("--scope", scope))]
    sent = 0
    while True:
        claimed = AlarmList.from_json(run_command(["alarms", "claim", *sender, *chosen, "--output", "json"]))
        if not claimed.alarms:
            return sent
        message = AlarmMessage.of(claimed.alarms, claimed=claimed.message, attempt=claimed.attempt)
        try:
            send(notifier, message, context)
        # An exception that ends the task, such as a timeout, does not show whether the message was sent.
        except Exception:
            run_command(["alarms", "settle", *sender, "--failed"])
            raise
        run_command(["alarms", "settle", *sender])
        log.info("%s: sent %d alarms in message %s", spec.name, len(claimed.alarms), message.id)
        sent += len(claimed.alarms)


def _owner(context: Mapping[str, Any]) -> str:
    """Return the id of this task try.

    It differs per try, so a retry waits until the claims of the earlier try expire.
    """
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.try_number}"
