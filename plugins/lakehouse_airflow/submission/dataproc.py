"""Drivers on Dataproc: jobs of a running cluster, by the provider's hook. The token is the id of the job."""

from __future__ import annotations

from collections.abc import Callable
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

EXTRA = "dataproc"
_HOOKS = "airflow.providers.google.cloud.hooks.dataproc"
_STATES = {
    "PENDING": ApplicationState.WAITING,
    "SETUP_DONE": ApplicationState.WAITING,
    "DONE": ApplicationState.SUCCEEDED,
    "ERROR": ApplicationState.FAILED,
    "ATTEMPT_FAILURE": ApplicationState.RUNNING,
    "CANCELLED": ApplicationState.KILLED,
}


class DataprocSubmission(ServiceSubmission):
    """Jobs of a Dataproc cluster.

    Settings: `project`, `region`, `cluster_name`; `job`, additional fields of the job.
    """

    def prepare(self, request: JobRequest) -> Prepared:
        """Return the job. Its driver runs on YARN in cluster mode."""
        project, cluster = self._choice.required("project", "cluster_name")
        job = {
            "reference": {"project_id": project, "job_id": request.token},
            "placement": {"cluster_name": cluster},
            "pyspark_job": {
                "main_python_file_uri": remote_application(request, "Dataproc"),
                "args": request.arguments,
                "properties": {"spark.submit.deployMode": "cluster", **request.yarn_conf},
            },
            # Airflow retries the task.
            "scheduling": {"max_failures_per_hour": 0},
        }
        return merged(self._choice.settings.get("job") or {}, job)

    def submit(self, prepared: Prepared) -> Application:
        """Submit the job."""
        project, region = self._place()
        request_id = prepared["reference"]["job_id"]
        self._call(
            lambda: self._service.submit_job(
                job=dict(prepared), project_id=project, region=region, request_id=request_id
            )
        )
        return self._application(request_id)

    def find(self, token: str) -> Application | None:
        """Return the job with the token as its id."""
        return None if self._job(token) is None else self._application(token)

    def status(self, application: Application) -> ApplicationStatus:
        """Return the state of the job."""
        job = self._job(application.ids["job"])
        if job is None:
            return ApplicationStatus(state=ApplicationState.MISSING, reason="Dataproc does not know the job")
        return ApplicationStatus(
            state=_STATES.get(job.status.state.name, ApplicationState.RUNNING),
            reason=str(job.status.details or ""),
            link=application.link,
            log=str(job.driver_output_resource_uri or ""),
        )

    def kill(self, application: Application) -> None:
        """Cancel the job."""
        project, region = self._place()
        self._call(lambda: self._service.cancel_job(job_id=application.ids["job"], project_id=project, region=region))

    @property
    def _service(self) -> Any:
        return provider_module(_HOOKS, extra=EXTRA).DataprocHook(gcp_conn_id=self._choice.connection)

    def _place(self) -> tuple[str, str]:
        project, region = self._choice.required("project", "region")
        return project, region

    def _job(self, job_id: str) -> Any:
        project, region = self._place()
        return self._call(lambda: self._service.get_job(job_id=job_id, project_id=project, region=region))

    def _call(self, call: Callable[[], Any]) -> Any:
        """Return the answer of the service; None if the job does not exist, or has ended before it was cancelled."""
        errors = provider_module("google.api_core.exceptions", extra=EXTRA)
        try:
            return call()
        except (errors.NotFound, errors.FailedPrecondition):
            return None
        except errors.ClientError as error:
            kind = RetryableError if isinstance(error, errors.TooManyRequests) else UserError
            raise kind(f"Dataproc: {error}") from error
        except errors.GoogleAPIError as error:
            raise RetryableError(f"Dataproc: {error}") from error

    def _application(self, job_id: str) -> Application:
        project, region = self._place()
        link = f"https://console.cloud.google.com/dataproc/jobs/{job_id}?region={region}&project={project}"
        return Application(ids={"job": job_id}, link=link)
