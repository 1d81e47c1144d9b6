"""Actions of users: their parameters, and the commands that preview and run them.

service actions    request_service, stop_run                                       the catalog, or a task of Airflow
policies           pause_service, resume_service, edit_policy, remove_policy       write a row of the catalog
table actions      rollback, rollback_failed, savepoint, restore                   a DAG run does them
table version      upgrade, downgrade                                              a DAG run does them
publication        publish, withdraw                                               a DAG run does them
alarms             silence, end_silence                                            write a row of the catalog
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import UserError, nearest
from lakehouse.spec.secrets import has_password
from lakehouse.spec.table.scheduling import ALL_SERVICES
from lakehouse.spec.table.services import VERSION_CHANGES, service_spec

_Words = tuple[str, ...]
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """One kind of action.

    Attributes:
        name: Name of the action.
        text: Sentence for the form.
        required: Parameters that the action needs.
        optional: Other parameters.
        command: Words of the command that runs it. A parameter name in braces follows its flag. Both are omitted if the
            parameter is not given, and repeated for each value of a list.
        preview: Words of the command that shows the effect; empty if the catalog computes it.
        subjects: The objects of the action: a table, all tables of a namespace, or alarms.
    """

    name: str
    text: str
    required: _Words = ()
    optional: _Words = ()
    command: _Words = ()
    preview: _Words = ()
    subjects: _Words = ("table",)

    @property
    def is_of_service(self) -> bool:
        """Whether the action concerns a service, so that it needs permission for the DAG of the service."""
        return "service" in self.required

    @property
    def by_dag(self) -> bool:
        """Whether a DAG run executes the action."""
        return bool(self.preview)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effect of an action, in sentences; `nothing_to_do` if it would change nothing."""

    sentences: _Words
    nothing_to_do: bool = False

    @classmethod
    def none(cls, reason: str) -> Effects:
        """Return the effects of an action that would change nothing. `reason` has no full stop."""
        return cls(sentences=(f"Nothing to do: {reason}.",), nothing_to_do=True)


_TABLE = ("--table", "{table}")
_JSON = ("--output", "json")
_SCOPE = (*_TABLE, "--namespace", "{namespace}", "--service", "{service}")
_SET = ("policy", "set", *_SCOPE)
_VERSIONS = ("--to", "{to}", "--from", "{from}")
_SCOPES = ("table", "namespace")
ACTIONS = (
    ActionSpec(
        name="request_service",
        text="Run a service at the next decision of the scheduler, due or not.",
        required=("service",),
        optional=("partitions",),
    ),
    ActionSpec(
        name="stop_run",
        text="Stop an active run of a service: its task in Airflow is marked failed, and its processes end.",
        required=("service", "run"),
    ),
    ActionSpec(
        name="pause_service",
        text="Keep the scheduler from running a service on the table.",
        required=("service",),
        command=(*_SET, "--set", "enabled=false", *_JSON),
        subjects=_SCOPES,
    ),
    ActionSpec(
        name="resume_service",
        text="Let the scheduler run a service on the table again.",
        required=("service",),
        command=(*_SET, "--set", "enabled=true", *_JSON),
        subjects=_SCOPES,
    ),
    ActionSpec(
        name="edit_policy",
        text="Change settings of a service for a table, its partitions that match a pattern, or a namespace.",
        required=("service", "settings"),
        optional=("pattern",),
        command=(*_SET, "--set", "{settings}", "--pattern", "{pattern}", *_JSON),
        subjects=_SCOPES,
    ),
    ActionSpec(
        name="remove_policy",
        text="Remove the settings of a service, so that those of the namespace, the spec or the defaults apply.",
        required=("service",),
        optional=("pattern",),
        command=("policy", "remove", *_SCOPE, "--pattern", "{pattern}", *_JSON),
        subjects=_SCOPES,
    ),
    ActionSpec(
        name="rollback",
        text="Roll back one write: a pending one, or the newest completed one.",
        required=("instant",),
        command=("rollback", "run", *_TABLE, "--instant", "{instant}", *_JSON),
        preview=("rollback", "run", *_TABLE, "--instant", "{instant}", "--dry-run", *_JSON),
    ),
    ActionSpec(
        name="rollback_failed",
        text="Roll back all writes whose writers failed.",
        command=("rollback", "failed", *_TABLE, *_JSON),
        preview=("rollback", "failed", *_TABLE, "--dry-run", *_JSON),
    ),
    ActionSpec(
        name="savepoint",
        text="Keep a commit and its files from clean and rollback.",
        optional=("instant", "comment", "user"),
        command=(
            *("savepoint", "create", *_TABLE, "--instant", "{instant}", "--comment", "{comment}"),
            *("--user", "{user}", *_JSON),
        ),
        preview=("savepoint", "create", *_TABLE, "--instant", "{instant}", "--dry-run", *_JSON),
    ),
    ActionSpec(
        name="restore",
        text="Roll back all writes after a savepoint or commit.",
        required=("instant",),
        command=("restore", "run", *_TABLE, "--to", "{instant}", *_JSON),
        preview=("restore", "run", *_TABLE, "--to", "{instant}", "--dry-run", *_JSON),
    ),
    *(
        ActionSpec(
            name=verb,
            text=f"Change the table to {article} table version; stop its writers first.",
            required=("to",),
            optional=("from",),
            command=("table", verb, *_TABLE, *_VERSIONS, *_JSON),
            preview=("table", verb, *_TABLE, *_VERSIONS, "--dry-run", *_JSON),
        )
        for verb, article in zip(VERSION_CHANGES, ("a newer", "an older"), strict=True)
    ),
    ActionSpec(
        name="publish",
        text="Publish partitions now, and again if they are published.",
        required=("partitions",),
        command=("publish", "signal", *_TABLE, "--partition", "{partitions}", "--run", *_JSON),
        preview=("publish", "plan", *_TABLE, "--partition", "{partitions}", *_JSON),
    ),
    ActionSpec(
        name="withdraw",
        text="Remove partitions from the metastore.",
        required=("partitions",),
        command=("publish", "withdraw", *_TABLE, "--partition", "{partitions}", *_JSON),
        preview=("publish", "status", *_TABLE, "--partition", "{partitions}", *_JSON),
    ),
    ActionSpec(
        name="silence",
        text="Stop sending alarms of a rule and a scope for a time such as 2h; they are still shown.",
        required=("duration", "reason"),
        optional=("rule", "scope"),
        subjects=("alarms",),
    ),
    ActionSpec(
        name="end_silence",
        text="End a silence now, so that its alarms are sent again.",
        required=("silence",),
        subjects=("alarms",),
    ),
)
#: Maximum size in bytes of an action's parameters as JSON.
LONGEST_PARAMETERS = 65_536
ACTION_NAMES = tuple(spec.name for spec in ACTIONS)


def action_spec(name: str) -> ActionSpec:
    """Return the spec of an action; raise UserError with a similar name if there is no such action."""
    for spec in ACTIONS:
        if spec.name == name:
            return spec
    near = nearest(name, ACTION_NAMES)
    raise UserError(f"unknown action {name!r}.{near} Known: {', '.join(ACTION_NAMES)}.", action=name)


def action_on(subject: str, name: str) -> ActionSpec:
    """Return the spec of an action on a kind of subject: `table`, `namespace` or `alarms`.

    Raises UserError if there is no such action, or if it concerns a different kind of subject.
    """
    spec = action_spec(name)
    if subject not in spec.subjects:
        allowed = ", ".join(action.name for action in ACTIONS if subject in action.subjects)
        raise UserError(f"{name} is not an action on a {subject}; allowed are {allowed}", action=name)
    return spec


def dag_run_id(action: int) -> str:
    """Return the id of the DAG run that executes an action. It is the same for each attempt to start the run."""
    return f"lakehouse_action_{action}"


def check_parameters(spec: ActionSpec, parameters: Mapping[str, Any]) -> None:
    """Raise UserError for a missing or unknown parameter, an unknown service, or an invalid value.

    A value is invalid if its type is wrong, if it is too long, or if databases or commands do not accept its
    characters.
    """
    _check_storable(spec, parameters)
    names = (*spec.required, *spec.optional)
    for name, value in parameters.items():
        if name not in names:
            allowed = ", ".join(names) or "none"
            raise UserError(f"{spec.name}: unknown parameter {name!r}.{nearest(name, names)} Known: {allowed}.")
        _check_value(spec, name, value)
    missing = [name for name in spec.required if not parameters.get(name)]
    if missing:
        raise UserError(f"{spec.name}: the parameter {missing[0]!r} is missing. {spec.text}")
    of_namespace = "namespace" in spec.subjects and parameters.get("service") == ALL_SERVICES
    stops_change = spec.name == "stop_run" and parameters.get("service") in VERSION_CHANGES
    if spec.is_of_service and not of_namespace and not stops_change:
        service_spec(str(parameters["service"]))


def command_words(words: Sequence[str], table: str, parameters: Mapping[str, Any], *, namespace: str = "") -> list[str]:
    """Insert parameter values into the words of a command; flags without a value are omitted."""
    values = {**parameters, "table": table, "namespace": namespace}
    arguments: list[str] = []
    for word in words:
        if not word.startswith("{"):
            arguments.append(word)
            continue
        flag, given = arguments.pop(), _texts(values.get(word.strip("{}")))
        # One argument --flag=value, so that a value that begins with a dash is not parsed as a flag.
        arguments += [f"{flag}={text}" for text in given]
    return arguments


def _texts(value: Any) -> list[str]:
    if value in (None, "", [], {}):
        return []
    if isinstance(value, Mapping):
        return [f"{name}={_text(part)}" for name, part in value.items()]
    return [_text(part) for part in value] if isinstance(value, list | tuple) else [_text(value)]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_storable(spec: ActionSpec, parameters: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(parameters, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise UserError(f"{spec.name}: the parameters contain {character!r}, half of a character; remove it") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{spec.name}: the parameters cannot be stored as JSON: {error}") from None
    if "\\u0000" in text.replace("\\\\", ""):
        raise UserError(
            f"{spec.name}: the parameters contain the character NUL, which no database stores and no command accepts; "
            "remove it"
        )
    if has_password(text):
        raise UserError(
            f"{spec.name}: the parameters contain a URL with a password, and all users see them in the list of "
            "actions. Write airflow:<connection id> instead"
        )
    if size > LONGEST_PARAMETERS:
        raise UserError(
            f"{spec.name}: the parameters have {size:,} bytes, more than {LONGEST_PARAMETERS:,}; all users see them in "
            "the list of actions. Request several actions, with fewer partitions each"
        )


def _check_value(spec: ActionSpec, name: str, value: Any) -> None:
    kinds: dict[str, Any] = {"partitions": list | tuple, "settings": Mapping}
    kind = kinds.get(name, str)
    if not isinstance(value, kind):
        what = {"partitions": "a list of partitions", "settings": "an object of settings"}.get(name, "a text")
        raise UserError(f"{spec.name}: {name} is {repr(value)[:_SHOWN]}, not {what}")
    if isinstance(value, list | tuple) and not all(isinstance(part, str) for part in value):
        raise UserError(f"{spec.name}: {name} is {repr(value)[:_SHOWN]}, not a list of strings")
