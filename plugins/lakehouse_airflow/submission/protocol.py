"""Protocol of submissions: prepare a request, submit it, read its status, kill it.

    prepare(request)   pure: the command line or document for the cluster
    submit(prepared)   ─► Application: the ids by which the cluster finds it, and a link to its page
    find(token)        ─► the application of an earlier submit whose reply was lost, because the task was killed
    status(app)        ─► waiting, running, or ended
    kill(app)

A token identifies a submission on its cluster: a tag, label, name or idempotency token. A task stores it before it
submits. A retry looks for an application with the token, and submits with the same token if there is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any, Protocol

from lakehouse.errors import UserError
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.job_command import JobCommand

#: Result of `prepare`: a document for the service, or a command line.
Prepared = dict[str, Any]


class ApplicationState(StrEnum):
    """The state of an application, the same for all clusters."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    #: The cluster does not know the application, or has removed it.
    MISSING = "missing"

    @property
    def has_ended(self) -> bool:
        """Whether the application does not run any more."""
        return self not in (ApplicationState.WAITING, ApplicationState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application(Document):
    """An application on a cluster.

    Attributes:
        ids: Ids that the submission needs to find it.
        link: Address of its page; empty if it has none.
    """

    ids: Mapping[str, str]
    link: str = ""

    @property
    def title(self) -> str:
        """The ids for messages."""
        return ", ".join(self.ids.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationStatus(Document):
    """The status of an application.

    Attributes:
        state: Its state.
        reason: Message of the cluster, mostly about a failure.
        link: Address of its page.
        log: Address of the driver's log.
    """

    state: ApplicationState
    reason: str = ""
    link: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job to submit.

    Attributes:
        name: Name that people see.
        token: Unique id of the submission: lower-case letters, digits and `-`, at most 40 characters.
        command: Arguments of the job.
        application: Script that the driver runs: a path, or a URL that the cluster can read.
        conf: Spark properties.
        variables: Environment variables of the driver, without secrets.
    """

    name: str
    token: str
    command: JobCommand
    application: str
    conf: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """The command line arguments of the job."""
        return list(self.command.to_argv())

    @property
    def yarn_conf(self) -> dict[str, str]:
        """The Spark properties for a driver in a container of YARN, with its environment variables.

        YARN must not start the driver a second time: Airflow retries the task.
        """
        variables = {f"spark.yarn.appMasterEnv.{name}": value for name, value in self.variables.items()}
        return {"spark.yarn.maxAppAttempts": "1", **variables, **self.conf}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionChoice(Document):
    """The submission of a task, in a form that a trigger can store.

    Attributes:
        name: Name of the submission, such as `yarn`.
        connection: Id of the Airflow connection.
        settings: Settings of the submission, such as the id of a cluster.
    """

    name: str
    connection: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def required(self, *names: str) -> list[str]:
        """Return settings; raise UserError for a missing one."""
        missing = [name for name in names if not self.settings.get(name)]
        if missing:
            raise UserError(
                f"the submission {self.name!r} needs the setting {', '.join(missing)}: add it to `lakehouse` in the "
                f"extra of the connection {self.connection!r}, or to the argument `submission` of the operator",
                connection=self.connection,
            )
        return [str(self.settings[name]) for name in names]

    def setting(self, name: str, default: str = "") -> str:
        """Return a setting."""
        return str(self.settings.get(name) or default)


class Submission(Protocol):
    """One way to run jobs. An error of the service is RetryableError; a wrong setting is UserError."""

    def prepare(self, request: JobRequest) -> Prepared:
        """Return the document or command line for a job. Nothing is sent."""
        ...

    def submit(self, prepared: Prepared) -> Application:
        """Start the application and return it; do not wait for its end."""
        ...

    def find(self, token: str) -> Application | None:
        """Return the application of an earlier `submit`, or None."""
        ...

    def status(self, application: Application) -> ApplicationStatus:
        """Return the status of an application; MISSING if the cluster does not know it."""
        ...

    def kill(self, application: Application) -> None:
        """End an application. One that has ended is not an error."""
        ...


class ServiceSubmission:
    """Base of submissions by requests to a service, which start no spark-submit."""

    def __init__(self, choice: SubmissionChoice, program: Any = None) -> None:
        del program
        self._choice = choice


def provider_module(name: str, *, extra: str) -> Any:
    """Import a module of an Airflow provider; raise UserError with the extra that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(
            f"{name} cannot be imported ({error}); install lakehouse-tables[{extra}] in Airflow's environment"
        ) from error


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with nested mappings of `changes` merged into it."""
    result = dict(base)
    for key, value in changes.items():
        before = result.get(key)
        is_nested = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[key] = merged(before, value) if is_nested and isinstance(before, Mapping) else value
    return result


def remote_application(request: JobRequest, service: str) -> str:
    """Return the URL of the script; raise UserError for a local path, which the service cannot read."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", request.application) or request.application.startswith("local:"):
        return request.application
    raise UserError(
        f"{service} cannot read {request.application!r}: copy lakehouse/__main__.py to a storage that it reads, and "
        "set `application` of the operator, or of `lakehouse` in the extra of the connection, to its URL"
    )
