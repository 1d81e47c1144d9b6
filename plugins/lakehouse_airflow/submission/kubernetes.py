"""Drivers in pods of Kubernetes: by spark-submit, or as a SparkApplication of the Spark operator.

The name of the driver's pod, or of the SparkApplication, is the token. Both are followed by the provider's
KubernetesHook, with the connection of the setting `kubernetes_connection` (default: the configuration of the pod, or
the kubeconfig of the process).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakehouse.errors import RetryableError, UserError
from lakehouse_airflow.submission.protocol import (
    Application,
    ApplicationState,
    ApplicationStatus,
    JobRequest,
    Prepared,
    SubmissionChoice,
    merged,
    provider_module,
    remote_application,
)
from lakehouse_airflow.submission.yarn import SubmitProgram, run_submit

EXTRA = "kubernetes"
_HOOKS = "airflow.providers.cncf.kubernetes.hooks.kubernetes"
_LABEL = "lakehouse-submission"
_GROUP, _VERSION, _PLURAL = "sparkoperator.k8s.io", "v1beta2", "sparkapplications"
_PHASES = {
    "Pending": ApplicationState.WAITING,
    "Running": ApplicationState.RUNNING,
    "Succeeded": ApplicationState.SUCCEEDED,
    "Failed": ApplicationState.FAILED,
}
_STATES = {
    "COMPLETED": ApplicationState.SUCCEEDED,
    "FAILED": ApplicationState.FAILED,
    "SUBMISSION_FAILED": ApplicationState.FAILED,
    "INVALIDATING": ApplicationState.FAILED,
    "RUNNING": ApplicationState.RUNNING,
    "SUCCEEDING": ApplicationState.RUNNING,
    "FAILING": ApplicationState.RUNNING,
}


class _Cluster:
    """The API of a cluster and a namespace."""

    def __init__(self, choice: SubmissionChoice) -> None:
        self._choice = choice
        self.namespace = choice.setting("namespace", "default")

    @property
    def hook(self) -> Any:
        """A hook of the provider."""
        kind = provider_module(_HOOKS, extra=EXTRA).KubernetesHook
        settings = self._choice.settings
        return kind(
            conn_id=settings.get("kubernetes_connection"),
            in_cluster=settings.get("in_cluster"),
            config_file=settings.get("config_file"),
        )

    def optional(self, call: Callable[[], Any]) -> Any:
        """Return the answer of the API; None for 404."""
        errors = provider_module("kubernetes.client.rest", extra=EXTRA)
        try:
            return call()
        except errors.ApiException as error:
            if error.status == 404:
                return None
            if error.status in (400, 401, 403, 422):
                raise UserError(
                    f"Kubernetes refused the request: {error.status} {error.reason} {error.body}"
                ) from error
            raise RetryableError(f"Kubernetes: {error.status} {error.reason}") from error
        except OSError as error:
            raise RetryableError(f"Kubernetes does not answer: {error}") from error
        except Exception as error:
            if type(error).__module__.startswith("urllib3"):
                raise RetryableError(f"Kubernetes does not answer: {error}") from error
            raise


class KubernetesSubmission:
    """Drivers in pods that spark-submit creates. Setting: `namespace`."""

    def __init__(self, choice: SubmissionChoice, program: SubmitProgram | None = None) -> None:
        self._cluster, self._program = _Cluster(choice), program

    def prepare(self, request: JobRequest) -> Prepared:
        """Return the command line of spark-submit and its environment."""
        assert self._program is not None, "a trigger submits nothing"
        conf = {
            "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.kubernetes.driver.pod.name": request.token,
            f"spark.kubernetes.driver.label.{_LABEL}": request.token,
            "spark.kubernetes.namespace": self._cluster.namespace,
        }
        command = self._program(request, conf)
        return {"words": list(command.words), "variables": dict(command.variables), "token": request.token}

    def submit(self, prepared: Prepared) -> Application:
        """Run spark-submit until the pod of the driver exists."""
        run_submit(prepared)
        return self._application(prepared["token"])

    def find(self, token: str) -> Application | None:
        """Return the application if its pod exists."""
        return None if self._pod(token) is None else self._application(token)

    def status(self, application: Application) -> ApplicationStatus:
        """Return the phase of the driver's pod."""
        pod = self._pod(application.ids["pod"])
        if pod is None:
            return ApplicationStatus(state=ApplicationState.MISSING, reason="the pod of the driver was deleted")
        namespace, name = application.ids["namespace"], application.ids["pod"]
        return ApplicationStatus(
            state=_PHASES.get(pod.status.phase, ApplicationState.RUNNING),
            reason=_pod_reason(pod),
            log=f"kubectl logs --namespace {namespace} {name}",
        )

    def kill(self, application: Application) -> None:
        """Delete the driver's pod; its executors are deleted with it."""
        api = self._cluster.hook.core_v1_client
        self._cluster.optional(lambda: api.delete_namespaced_pod(application.ids["pod"], application.ids["namespace"]))

    def _pod(self, name: str) -> Any:
        api = self._cluster.hook.core_v1_client
        return self._cluster.optional(lambda: api.read_namespaced_pod(name, self._cluster.namespace))

    def _application(self, name: str) -> Application:
        return Application(ids={"pod": name, "namespace": self._cluster.namespace})


class SparkApplicationSubmission:
    """A SparkApplication of the Spark operator (Kubeflow).

    Settings: `namespace`; `template`, a SparkApplication with image, service account and resources.
    """

    def __init__(self, choice: SubmissionChoice, program: SubmitProgram | None = None) -> None:
        del program
        self._choice, self._cluster = choice, _Cluster(choice)

    def prepare(self, request: JobRequest) -> Prepared:
        """Return the SparkApplication: the template with the command of the job."""
        variables = [{"name": name, "value": value} for name, value in request.variables.items()]
        template: Mapping[str, Any] = self._choice.settings.get("template") or {}
        driver = (template.get("spec") or {}).get("driver") or {}
        body = {
            "apiVersion": f"{_GROUP}/{_VERSION}",
            "kind": "SparkApplication",
            "metadata": {
                "name": request.token,
                "namespace": self._cluster.namespace,
                "labels": {_LABEL: request.token},
                "annotations": {"lakehouse/job": request.name},
            },
            "spec": {
                "type": "Python",
                "mode": "cluster",
                "mainApplicationFile": remote_application(request, "the Spark operator"),
                "arguments": request.arguments,
                "sparkConf": dict(request.conf),
                # Airflow retries the task.
                "restartPolicy": {"type": "Never"},
                "driver": {"env": [*(driver.get("env") or ()), *variables]},
            },
        }
        return merged(template, body)

    def submit(self, prepared: Prepared) -> Application:
        """Create the SparkApplication."""
        hook, namespace = self._cluster.hook, self._cluster.namespace
        self._cluster.optional(lambda: hook.create_custom_object(_GROUP, _VERSION, _PLURAL, dict(prepared), namespace))
        return self._application(str(prepared["metadata"]["name"]))

    def find(self, token: str) -> Application | None:
        """Return the application if it exists."""
        return None if self._object(token) is None else self._application(token)

    def status(self, application: Application) -> ApplicationStatus:
        """Return the state that the Spark operator has written to the object."""
        document = self._object(application.ids["name"])
        if document is None:
            return ApplicationStatus(state=ApplicationState.MISSING, reason="the SparkApplication was deleted")
        status = document.get("status") or {}
        state = status.get("applicationState") or {}
        pod = (status.get("driverInfo") or {}).get("podName") or ""
        return ApplicationStatus(
            state=_STATES.get(str(state.get("state") or ""), ApplicationState.WAITING),
            reason=str(state.get("errorMessage") or ""),
            log=f"kubectl logs --namespace {self._cluster.namespace} {pod}" if pod else "",
        )

    def kill(self, application: Application) -> None:
        """Delete the SparkApplication; the operator deletes its pods."""
        name, namespace = application.ids["name"], application.ids["namespace"]
        hook = self._cluster.hook
        self._cluster.optional(lambda: hook.delete_custom_object(_GROUP, _VERSION, _PLURAL, name, namespace))

    def _object(self, name: str) -> Any:
        hook, namespace = self._cluster.hook, self._cluster.namespace
        return self._cluster.optional(lambda: hook.get_custom_object(_GROUP, _VERSION, _PLURAL, name, namespace))

    def _application(self, name: str) -> Application:
        return Application(ids={"name": name, "namespace": self._cluster.namespace})


def _pod_reason(pod: Any) -> str:
    """Return the reason of a pod and of its containers, such as `OOMKilled`."""
    reasons = [pod.status.reason, pod.status.message]
    for container in pod.status.container_statuses or ():
        for state in (container.state.terminated, container.state.waiting):
            reasons += [state.reason, state.message] if state is not None else []
    return "; ".join(str(reason) for reason in reasons if reason)
