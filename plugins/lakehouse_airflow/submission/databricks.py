"""Drivers on Databricks: one-time runs on a new cluster, by the provider's hook.

The token is the idempotency token of the run: a second submit with it returns the first run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakehouse.errors import LakehouseError, RetryableError, UserError
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

EXTRA = "databricks"
_HOOKS = "airflow.providers.databricks.hooks.databricks"
_WAITING = ("PENDING", "QUEUED", "BLOCKED", "WAITING_FOR_RETRY")


class DatabricksSubmission(ServiceSubmission):
    """Runs of Databricks. Settings: `new_cluster`, the definition of the cluster; `run`, additional fields."""

    def prepare(self, request: JobRequest) -> Prepared:
        """Return the run: a Python script on a new cluster with the variables of the job."""
        self._choice.required("new_cluster")
        cluster = merged(
            self._choice.settings["new_cluster"],
            {"spark_env_vars": dict(request.variables), "spark_conf": dict(request.conf)},
        )
        run = {
            "run_name": request.name,
            "idempotency_token": request.token,
            "new_cluster": cluster,
            "spark_python_task": {
                "python_file": remote_application(request, "Databricks"),
                "parameters": request.arguments,
            },
        }
        return merged(self._choice.settings.get("run") or {}, run)

    def submit(self, prepared: Prepared) -> Application:
        """Submit the run."""
        number = self._call(lambda: self._service.submit_run(dict(prepared)))
        link = self._call(lambda: self._service.get_run_page_url(number))
        return Application(ids={"run": str(number)}, link=str(link or ""))

    def find(self, token: str) -> Application | None:
        """Return None: the next submit with the token returns the run."""
        del token
        return None

    def status(self, application: Application) -> ApplicationStatus:
        """Return the state of the run."""
        run = self._call(lambda: self._service.get_run(int(application.ids["run"])))
        if run is None:
            return ApplicationStatus(state=ApplicationState.MISSING, reason="Databricks does not know the run")
        state = run["state"]
        return ApplicationStatus(
            state=_state(str(state["life_cycle_state"]), str(state.get("result_state") or "")),
            reason=str(state.get("state_message") or ""),
            link=str(run.get("run_page_url") or application.link),
        )

    def kill(self, application: Application) -> None:
        """Cancel the run."""
        self._call(lambda: self._service.cancel_run(int(application.ids["run"])))

    @property
    def _service(self) -> Any:
        return provider_module(_HOOKS, extra=EXTRA).DatabricksHook(
            databricks_conn_id=self._choice.connection, retry_limit=2, retry_delay=1
        )

    def _call(self, call: Callable[[], Any]) -> Any:
        """Return the answer; None for a run that does not exist."""
        try:
            return call()
        except LakehouseError:
            raise
        except Exception as error:
            # The hook raises AirflowException because of an error of its HTTP client, which has the response.
            response = getattr(error.__cause__, "response", None)
            status, text = getattr(response, "status_code", None) or 0, str(error)
            if "does not exist" in text or status == 404:
                return None
            is_refused = 400 <= status < 500 and status != 429
            raise (UserError if is_refused else RetryableError)(f"Databricks: {text}") from error


def _state(life_cycle: str, result: str) -> ApplicationState:
    if life_cycle in _WAITING:
        return ApplicationState.WAITING
    if life_cycle in ("RUNNING", "TERMINATING"):
        return ApplicationState.RUNNING
    if result == "SUCCESS":
        return ApplicationState.SUCCEEDED
    return ApplicationState.KILLED if result == "CANCELED" else ApplicationState.FAILED
