"""Drivers in batches of an Apache Livy server, by the provider's LivyHook. The token is the name of the batch."""

from __future__ import annotations

from importlib import import_module
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

EXTRA = "livy"
_HOOKS = "airflow.providers.apache.livy.hooks.livy"
_STATES = {
    "not_started": ApplicationState.WAITING,
    "starting": ApplicationState.WAITING,
    "success": ApplicationState.SUCCEEDED,
    "dead": ApplicationState.FAILED,
    "error": ApplicationState.FAILED,
    "killed": ApplicationState.KILLED,
}
#: Maximum number of newest batches in which `find` looks.
_BATCHES = 100


class LivySubmission(ServiceSubmission):
    """Batches of Livy. Setting: `batch`, additional fields of the batch, such as `queue` or `numExecutors`."""

    def prepare(self, request: JobRequest) -> Prepared:
        """Return the body of the batch. Its variables are set for drivers on YARN and on Kubernetes."""
        variables = {f"spark.kubernetes.driverEnv.{name}": value for name, value in request.variables.items()}
        body = {
            "name": request.token,
            "file": remote_application(request, "Livy"),
            "args": request.arguments,
            "conf": {**variables, **request.yarn_conf},
        }
        return merged(self._choice.settings.get("batch") or {}, body)

    def submit(self, prepared: Prepared) -> Application:
        """Create the batch."""
        answer = self._call("/batches", "POST", prepared)
        return self._application(int(answer["id"]))

    def find(self, token: str) -> Application | None:
        """Return the batch with the name of the token, among the newest batches."""
        total = int((self._call("/batches?from=0&size=1", "GET") or {}).get("total", 0))
        start = max(0, total - _BATCHES)
        answer = self._call(f"/batches?from={start}&size={_BATCHES}", "GET") or {}
        ids = [int(batch["id"]) for batch in answer.get("sessions") or () if batch.get("name") == token]
        return self._application(max(ids)) if ids else None

    def status(self, application: Application) -> ApplicationStatus:
        """Return the state of the batch."""
        batch = self._call(f"/batches/{application.ids['batch']}", "GET")
        if batch is None:
            return ApplicationStatus(state=ApplicationState.MISSING, reason="Livy has removed the batch")
        info = batch.get("appInfo") or {}
        state = _STATES.get(str(batch.get("state")), ApplicationState.RUNNING)
        return ApplicationStatus(
            state=state,
            reason="\n".join((batch.get("log") or ())[-10:]) if state is ApplicationState.FAILED else "",
            link=str(info.get("sparkUiUrl") or ""),
            log=str(info.get("driverLogUrl") or ""),
        )

    def kill(self, application: Application) -> None:
        """Delete the batch, which ends its application."""
        self._call(f"/batches/{application.ids['batch']}", "DELETE")

    def _call(self, path: str, method: str, body: Prepared | None = None) -> Any:
        """Send a request with the address and the credentials of the connection; return None for 404."""
        hook = provider_module(_HOOKS, extra=EXTRA).LivyHook(livy_conn_id=self._choice.connection)
        headers = {"X-Requested-By": "lakehouse"}
        session = hook.get_conn(headers)
        url = f"{hook.base_url.rstrip('/')}{path}"
        try:
            response = session.request(method, url, json=body, headers=headers, timeout=60)
        except import_module("requests").RequestException as error:
            raise RetryableError(f"Livy does not answer: {error}") from error
        if response.status_code == 404:
            return None
        if 400 <= response.status_code < 500:
            raise UserError(f"Livy refused {method} {path}: {response.status_code} {response.text[:1000]}")
        if response.status_code >= 500:
            raise RetryableError(f"Livy: {response.status_code} {response.text[:1000]}")
        return response.json() if response.content else {}

    def _application(self, number: int) -> Application:
        return Application(ids={"batch": str(number)})
