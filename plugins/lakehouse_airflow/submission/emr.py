"""Drivers on Amazon EMR: steps of a running cluster, and job runs of EMR Serverless, by the provider's hooks.

The token is the name of the step. For EMR Serverless it is the name and the idempotency token of the job run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

from lakehouse.errors import RetryableError, UserError
from lakehouse_airflow.submission.protocol import (
    Application,
    ApplicationState,
    ApplicationStatus,
    JobRequest,
    Prepared,
    ServiceSubmission,
    merged,
    provider_module,
    remote_application,
)

EXTRA = "emr"
_HOOKS = "airflow.providers.amazon.aws.hooks.emr"
_STEP_STATES = {
    "PENDING": ApplicationState.WAITING,
    "CANCEL_PENDING": ApplicationState.RUNNING,
    "RUNNING": ApplicationState.RUNNING,
    "COMPLETED": ApplicationState.SUCCEEDED,
    "CANCELLED": ApplicationState.KILLED,
    "FAILED": ApplicationState.FAILED,
    "INTERRUPTED": ApplicationState.FAILED,
}
_RUN_STATES = {
    "RUNNING": ApplicationState.RUNNING,
    "CANCELLING": ApplicationState.RUNNING,
    "SUCCESS": ApplicationState.SUCCEEDED,
    "FAILED": ApplicationState.FAILED,
    "CANCELLED": ApplicationState.KILLED,
}
#: Error codes after which the same request can succeed.
_TRANSIENT = ("ThrottlingException", "InternalServerException", "InternalServerError", "RequestTimeout")
_MISSING = ("ResourceNotFoundException",)


class EmrSubmission(ServiceSubmission):
    """Steps of an EMR cluster. Setting: `cluster_id`, such as `j-2AXXXXXXGAPLF`."""

    def prepare(self, request: JobRequest) -> Prepared:
        """Return the step: spark-submit in cluster mode on the cluster."""
        (cluster,) = self._choice.required("cluster_id")
        conf = [word for key, value in request.yarn_conf.items() for word in ("--conf", f"{key}={value}")]
        words = ["spark-submit", "--deploy-mode", "cluster", "--name", request.name, *conf]
        words += [remote_application(request, "EMR"), *request.arguments]
        step = {
            "Name": request.token,
            "ActionOnFailure": "CONTINUE",
            "HadoopJarStep": {"Jar": "command-runner.jar", "Args": words},
        }
        return {"cluster": cluster, "step": step}

    def submit(self, prepared: Prepared) -> Application:
        """Add the step."""
        with _translated():
            ids = self._service.add_job_flow_steps(prepared["cluster"], steps=[prepared["step"]])
        return self._application(prepared["cluster"], ids[0])

    def find(self, token: str) -> Application | None:
        """Return the step with the name of the token."""
        (cluster,) = self._choice.required("cluster_id")
        with _translated():
            pages = self._service.get_conn().get_paginator("list_steps").paginate(ClusterId=cluster)
            steps = chain.from_iterable(page["Steps"] for page in pages)
            ids = [str(step["Id"]) for step in steps if step["Name"] == token]
        return self._application(cluster, ids[0]) if ids else None

    def status(self, application: Application) -> ApplicationStatus:
        """Return the state of the step."""
        cluster, step = application.ids["cluster"], application.ids["step"]
        answer = _optional(lambda: self._service.get_conn().describe_step(ClusterId=cluster, StepId=step))
        if answer is None:
            return ApplicationStatus(state=ApplicationState.MISSING, reason="EMR does not know the step")
        status = answer["Step"]["Status"]
        failure: Mapping[str, Any] = status.get("FailureDetails") or {}
        reasons = [
            failure.get("Reason"),
            failure.get("Message"),
            (status.get("StateChangeReason") or {}).get("Message"),
        ]
        return ApplicationStatus(
            state=_STEP_STATES.get(status["State"], ApplicationState.RUNNING),
            reason="; ".join(str(reason) for reason in reasons if reason),
            link=application.link,
            log=str(failure.get("LogFile") or ""),
        )

    def kill(self, application: Application) -> None:
        """Cancel the step and its process."""
        with _translated():
            self._service.get_conn().cancel_steps(
                ClusterId=application.ids["cluster"],
                StepIds=[application.ids["step"]],
                StepCancellationOption="TERMINATE_PROCESS",
            )

    @property
    def _service(self) -> Any:
        return provider_module(_HOOKS, extra=EXTRA).EmrHook(aws_conn_id=self._choice.connection, emr_conn_id=None)

    def _application(self, cluster: str, step: str) -> Application:
        region = self._service.conn_region_name or "us-east-1"
        link = f"https://{region}.console.aws.amazon.com/emr/home?region={region}#/clusterDetails/{cluster}"
        return Application(ids={"cluster": cluster, "step": step}, link=link)


class EmrServerlessSubmission(ServiceSubmission):
    """Job runs of an EMR Serverless application.

    Settings: `application_id`, `execution_role_arn`; `job_run`, additional fields of the job run.
    """

    def prepare(self, request: JobRequest) -> Prepared:
        """Return the arguments of `start_job_run`."""
        application, role = self._choice.required("application_id", "execution_role_arn")
        variables = {f"spark.emr-serverless.driverEnv.{name}": value for name, value in request.variables.items()}
        conf = {**variables, **request.conf}
        return merged(
            self._choice.settings.get("job_run") or {},
            {
                "applicationId": application,
                "clientToken": request.token,
                "executionRoleArn": role,
                "name": request.token,
                "jobDriver": {
                    "sparkSubmit": {
                        "entryPoint": remote_application(request, "EMR Serverless"),
                        "entryPointArguments": request.arguments,
                        "sparkSubmitParameters": " ".join(f"--conf {_quoted(f'{k}={v}')}" for k, v in conf.items()),
                    }
                },
            },
        )

    def submit(self, prepared: Prepared) -> Application:
        """Start the job run."""
        with _translated():
            answer = self._client.start_job_run(**prepared)
        return self._application(answer["applicationId"], answer["jobRunId"])

    def find(self, token: str) -> Application | None:
        """Return the job run with the name of the token."""
        (application,) = self._choice.required("application_id")
        with _translated():
            pages = self._client.get_paginator("list_job_runs").paginate(applicationId=application)
            runs = chain.from_iterable(page["jobRuns"] for page in pages)
            ids = [str(run["id"]) for run in runs if run.get("name") == token]
        return self._application(application, ids[0]) if ids else None

    def status(self, application: Application) -> ApplicationStatus:
        """Return the state of the job run."""
        ids = {"applicationId": application.ids["application"], "jobRunId": application.ids["run"]}
        answer = _optional(lambda: self._client.get_job_run(**ids))
        if answer is None:
            return ApplicationStatus(state=ApplicationState.MISSING, reason="EMR Serverless does not know the job run")
        run = answer["jobRun"]
        return ApplicationStatus(
            state=_RUN_STATES.get(run["state"], ApplicationState.WAITING),
            reason=str(run.get("stateDetails") or ""),
            link=application.link,
        )

    def kill(self, application: Application) -> None:
        """Cancel the job run."""
        ids = {"applicationId": application.ids["application"], "jobRunId": application.ids["run"]}
        _optional(lambda: self._client.cancel_job_run(**ids))

    @property
    def _client(self) -> Any:
        hook = provider_module(_HOOKS, extra=EXTRA).EmrServerlessHook(aws_conn_id=self._choice.connection)
        return hook.conn

    def _application(self, application: str, run: str) -> Application:
        return Application(ids={"application": application, "run": run})


def _quoted(text: str) -> str:
    """Quote a parameter for EMR Serverless, which splits its parameters at blanks."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' if any(c in text for c in ' "\\') else text


@contextmanager
def _translated() -> Iterator[None]:
    """Raise UserError or RetryableError for errors of boto3."""
    errors = provider_module("botocore.exceptions", extra=EXTRA)
    try:
        yield
    except errors.ClientError as error:
        code, status = (
            error.response["Error"].get("Code"),
            error.response["ResponseMetadata"].get("HTTPStatusCode", 500),
        )
        kind = RetryableError if code in _TRANSIENT or status >= 500 else UserError
        raise kind(f"EMR: {error}") from error
    except errors.BotoCoreError as error:
        raise RetryableError(f"EMR: {error}") from error


def _optional(call: Callable[[], Any]) -> Any:
    """Return the answer; None if the step or job run does not exist."""
    errors = provider_module("botocore.exceptions", extra=EXTRA)
    with _translated():
        try:
            return call()
        except errors.ClientError as error:
            code, text = error.response["Error"].get("Code"), str(error)
            if code in _MISSING or (code == "InvalidRequestException" and "Step id" in text and "not valid" in text):
                return None
            raise
