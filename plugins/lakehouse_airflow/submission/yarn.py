"""Drivers in containers of YARN: spark-submit starts them, the REST API of the resource manager follows them.

spark-submit ends after the submission (`waitAppCompletion=false`). With SIGTERM it would end, too, and the application
would continue; and its exit code is 1 for every failed driver. The token is a tag of the application.
"""

from __future__ import annotations

import getpass
import logging
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import requests

from lakehouse.errors import RetryableError, UserError
from lakehouse_airflow.spark_submit import SubmitCommand
from lakehouse_airflow.submission.protocol import (
    Application,
    ApplicationState,
    ApplicationStatus,
    JobRequest,
    Prepared,
    SubmissionChoice,
    provider_module,
)

log = logging.getLogger(__name__)

EXTRA = "airflow"
#: Builds the command line of spark-submit for a request with additional Spark properties.
SubmitProgram = Callable[[JobRequest, Mapping[str, str]], SubmitCommand]
_APPLICATION = re.compile(r"application_\d+_\d+")
_TIMEOUT_S = 30
_SHOWN = 2000
_ENDED = {
    "SUCCEEDED": ApplicationState.SUCCEEDED,
    "FAILED": ApplicationState.FAILED,
    "KILLED": ApplicationState.KILLED,
    "UNDEFINED": ApplicationState.FAILED,
}


class YarnSubmission:
    """Applications on YARN in cluster mode.

    Settings: `resource_manager`, the URLs of the resource managers, comma separated (default: from `yarn-site.xml` in
    HADOOP_CONF_DIR); `auth`, `kerberos` for SPNEGO with the ticket of the process.
    """

    def __init__(self, choice: SubmissionChoice, program: SubmitProgram | None = None) -> None:
        self._choice, self._program = choice, program

    def prepare(self, request: JobRequest) -> Prepared:
        """Return the command line of spark-submit and its environment."""
        assert self._program is not None, "a trigger submits nothing"
        conf = {
            "spark.yarn.maxAppAttempts": "1",
            "spark.yarn.submit.waitAppCompletion": "false",
            "spark.yarn.tags": ",".join(filter(None, (request.conf.get("spark.yarn.tags"), request.token))),
        }
        command = self._program(request, conf)
        return {"words": list(command.words), "variables": dict(command.variables), "token": request.token}

    def submit(self, prepared: Prepared) -> Application:
        """Run spark-submit until YARN has accepted the application."""
        self._urls()
        output = run_submit(prepared)
        ids = _APPLICATION.findall(output)
        application = _application(ids[-1]) if ids else self.find(prepared["token"])
        if application is None:
            raise RetryableError(f"spark-submit ended without an application on YARN: {output[-_SHOWN:]}")
        return application

    def find(self, token: str) -> Application | None:
        """Return the newest application with the tag."""
        answer = self._get("apps", {"applicationTags": token.lower()}) or {}
        found = (answer.get("apps") or {}).get("app") or []
        newest = max(found, key=lambda app: int(app.get("startedTime", 0)), default=None)
        return None if newest is None else _application(str(newest["id"]), str(newest.get("trackingUrl") or ""))

    def status(self, application: Application) -> ApplicationStatus:
        """Return the state of the application and the final status of its driver."""
        answer = self._get(f"apps/{application.ids['application']}", {})
        if answer is None:
            return ApplicationStatus(state=ApplicationState.MISSING, reason="the resource manager does not know it")
        app: Mapping[str, Any] = answer["app"]
        return ApplicationStatus(
            state=_state(app),
            reason=str(app.get("diagnostics") or "").strip()[-_SHOWN:],
            link=_address(app.get("trackingUrl")),
            log=_address(app.get("amContainerLogs")),
        )

    def kill(self, application: Application) -> None:
        """Set the state of the application to KILLED."""
        path = f"apps/{application.ids['application']}/state"
        response = self._request("PUT", path, {}, {"state": "KILLED"})
        if response.status_code not in (200, 202, 404):
            raise RetryableError(f"YARN refused to kill {application.title}: {_text(response)}")

    def _get(self, path: str, query: Mapping[str, str]) -> dict[str, Any] | None:
        response = self._request("GET", path, query, None)
        if response.status_code == 404:
            return None
        if response.status_code != 200:
            raise RetryableError(f"YARN answered {response.status_code} to {path}: {_text(response)}")
        return dict(response.json())

    def _request(self, method: str, path: str, query: Mapping[str, str], body: Any) -> requests.Response:
        """Send a request to the active resource manager; a standby one redirects or does not answer."""
        errors = []
        for url in self._urls():
            try:
                response = requests.request(
                    method,
                    f"{url}/ws/v1/cluster/{path}",
                    params={**query, **self._user()},
                    json=body,
                    auth=self._auth(),
                    headers={"Accept": "application/json"},
                    timeout=_TIMEOUT_S,
                )
            except requests.RequestException as error:
                errors.append(f"{url}: {error}")
                continue
            if response.status_code < 500 and "This is standby RM" not in response.text[:_SHOWN]:
                return response
            errors.append(f"{url}: {_text(response)}")
        raise RetryableError(f"no resource manager answers: {'; '.join(errors)}")

    def _user(self) -> dict[str, str]:
        """Return the user for clusters without Kerberos."""
        return {} if self._auth() else {"user.name": os.environ.get("HADOOP_USER_NAME") or getpass.getuser()}

    def _auth(self) -> Any:
        if self._choice.setting("auth") != "kerberos":
            return None
        return provider_module("requests_gssapi", extra="kerberos").HTTPSPNEGOAuth()

    def _urls(self) -> list[str]:
        given = self._choice.setting("resource_manager")
        urls = [url.strip().rstrip("/") for url in given.split(",") if url.strip()] or resource_managers(os.environ)
        if not urls:
            raise UserError(
                "the resource manager of YARN is unknown: set HADOOP_CONF_DIR to a folder with yarn-site.xml, or "
                "`resource_manager` of `lakehouse` in the extra of the Spark connection to its URL, such as "
                "http://host:8088",
                connection=self._choice.connection,
            )
        return urls


def resource_managers(environ: Mapping[str, str]) -> list[str]:
    """Return the web addresses of the resource managers in `yarn-site.xml`."""
    folder = environ.get("YARN_CONF_DIR") or environ.get("HADOOP_CONF_DIR")
    path = Path(folder or "") / "yarn-site.xml"
    if not folder or not path.is_file():
        return []
    root = ElementTree.parse(path).getroot()
    values = {(one.findtext("name") or "").strip(): (one.findtext("value") or "").strip() for one in root}
    is_https = values.get("yarn.http.policy") == "HTTPS_ONLY"
    scheme, port = ("https", 8090) if is_https else ("http", 8088)
    prefix, suffix = "yarn.resourcemanager.", "webapp.https.address" if is_https else "webapp.address"
    hosts = []
    for part in ["", *(f".{name.strip()}" for name in values.get(f"{prefix}ha.rm-ids", "").split(",") if name.strip())]:
        host = values.get(f"{prefix}hostname{part}")
        address = values.get(f"{prefix}{suffix}{part}") or (f"{host}:{port}" if host else "")
        address = address.replace("${yarn.resourcemanager.hostname}", host or "")
        hosts += [f"{scheme}://{address}"] if address else []
    return hosts


def run_submit(prepared: Prepared) -> str:
    """Run spark-submit, log its output, and return it; raise RetryableError if it fails."""
    lines = []
    with subprocess.Popen(
        prepared["words"],
        env={**os.environ, **prepared["variables"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None, "stdout is a pipe"
        for line in process.stdout:
            lines.append(line)
            log.info("%s", line.rstrip())
    output = "".join(lines)
    if process.returncode:
        raise RetryableError(f"spark-submit ended with exit code {process.returncode}: {output[-_SHOWN:]}")
    return output


def _application(id_: str, link: str = "") -> Application:
    return Application(ids={"application": id_}, link=_address(link))


def _state(app: Mapping[str, Any]) -> ApplicationState:
    state = str(app.get("state"))
    if state in ("FINISHED", "FAILED", "KILLED"):
        final = str(app.get("finalStatus")) if state == "FINISHED" else state
        return _ENDED.get(final, ApplicationState.FAILED)
    return ApplicationState.RUNNING if state == "RUNNING" else ApplicationState.WAITING


def _address(text: Any) -> str:
    return str(text) if str(text or "").startswith("http") else ""


def _text(response: requests.Response) -> str:
    return f"{response.status_code} {response.text.strip()[:_SHOWN]}"
