"""Fake services of clusters for the contract of submissions: each is an HTTP or gRPC server that the real client calls.

A fake remembers the requests and keeps applications with a state that a test sets. `down` makes a server answer 503.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

HOST = "127.0.0.1"
#: An answer: the HTTP status and the document.
Answer = tuple[int, Any]


@dataclass
class FakeService:
    """Base of the fakes: applications by id, and all requests as `METHOD path`."""

    applications: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    down: bool = False
    url: str = ""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        """Return the answer to a request."""
        raise NotImplementedError

    def finish(self, state: str, reason: str = "") -> None:
        """Set the state of the newest application: `running`, `succeeded`, `failed` or `killed`."""
        raise NotImplementedError

    @property
    def newest(self) -> dict[str, Any]:
        """The newest application."""
        return list(self.applications.values())[-1]


class FakeYarn(FakeService):
    """The REST API of a resource manager; the fake spark-submit registers applications with `/submit`."""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        """Answer as a resource manager."""
        if path == "/submit":
            number = f"application_1700000000000_{len(self.applications) + 1:04}"
            app = {"id": number, "state": "ACCEPTED", "finalStatus": "UNDEFINED", "applicationTags": body["tags"]}
            self.applications[number] = {**app, "diagnostics": "", "trackingUrl": f"http://rm/proxy/{number}/"}
            return 200, {"id": number}
        parts = path.removeprefix("/ws/v1/cluster/").split("/")
        if parts == ["apps"]:
            tag = query["applicationTags"][0]
            apps = [app for app in self.applications.values() if tag in app["applicationTags"].split(",")]
            return 200, {"apps": {"app": apps} if apps else None}
        if parts[1] not in self.applications:
            return 404, {"RemoteException": {"exception": "NotFoundException"}}
        app = self.applications[parts[1]]
        if method == "PUT":
            if app["state"] not in ("FINISHED", "FAILED", "KILLED"):
                app.update(state="KILLED", finalStatus="KILLED", diagnostics="killed by user")
            return 202, {"state": "KILLED"}
        return 200, {"app": app}

    def finish(self, state: str, reason: str = "") -> None:
        """Set the state of the newest application."""
        states = {
            "running": ("RUNNING", "UNDEFINED"),
            "succeeded": ("FINISHED", "SUCCEEDED"),
            "failed": ("FINISHED", "FAILED"),
            "killed": ("KILLED", "KILLED"),
        }
        self.newest.update(state=states[state][0], finalStatus=states[state][1], diagnostics=reason)


class FakeKubernetes(FakeService):
    """Pods and SparkApplications of an API server; the fake spark-submit creates pods with `/submit`."""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        """Answer as an API server."""
        if path == "/submit":
            self.applications[body["pod"]] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": body["pod"], "namespace": "lake"},
                "status": {"phase": "Pending"},
            }
            return 200, {}
        match = re.fullmatch(r".*/namespaces/lake/(pods|sparkapplications)(?:/([^/]+))?", path)
        assert match is not None, path
        if method == "POST":
            if body["metadata"]["name"] in self.applications:
                return 409, {"kind": "Status", "code": 409, "reason": "AlreadyExists"}
            self.applications[body["metadata"]["name"]] = body
            return 201, body
        if match[2] not in self.applications:
            return 404, {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}
        if method == "DELETE":
            return 200, self.applications.pop(match[2])
        return 200, self.applications[match[2]]

    def finish(self, state: str, reason: str = "") -> None:
        """Set the phase of the newest pod, or the state of the newest SparkApplication."""
        newest = self.newest
        if newest["kind"] == "Pod":
            newest["status"] = {"phase": state.capitalize(), "message": reason}
            return
        states = {"running": "RUNNING", "succeeded": "COMPLETED", "failed": "FAILED"}
        application = {"state": states[state], "errorMessage": reason}
        newest["status"] = {"applicationState": application, "driverInfo": {"podName": "driver"}}


class FakeLivy(FakeService):
    """Batches of a Livy server."""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        """Answer as a Livy server."""
        if path == "/batches" and method == "POST":
            number = len(self.applications)
            batch = {"id": number, "name": body["name"], "state": "starting", "log": [], "appInfo": {}}
            self.applications[str(number)] = batch
            return 201, batch
        if path == "/batches":
            start, size = int(query["from"][0]), int(query["size"][0])
            batches = list(self.applications.values())
            return 200, {"from": start, "total": len(batches), "sessions": batches[start : start + size]}
        number = path.rpartition("/")[2]
        if number not in self.applications:
            return 404, {"msg": f"Session '{number}' not found."}
        if method == "DELETE":
            self.applications.pop(number)
            return 200, {"msg": "deleted"}
        return 200, self.applications[number]

    def finish(self, state: str, reason: str = "") -> None:
        """Set the state of the newest batch."""
        states = {"running": "running", "succeeded": "success", "failed": "dead", "killed": "killed"}
        info = {"sparkUiUrl": "http://ui/app", "driverLogUrl": "http://logs/driver"}
        self.newest.update(state=states[state], log=[reason], appInfo=info)


class FakeDatabricks(FakeService):
    """One-time runs of a Databricks workspace."""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        """Answer as a workspace."""
        name = path.rpartition("/")[2]
        if name == "submit":
            for number, run in self.applications.items():
                if run["token"] == body["idempotency_token"]:
                    return 200, {"run_id": int(number)}
            number = str(len(self.applications) + 1)
            state = {"life_cycle_state": "PENDING", "state_message": ""}
            page = {"run_page_url": f"https://workspace/run/{number}"}
            self.applications[number] = {"token": body["idempotency_token"], "state": state, **page}
            return 200, {"run_id": int(number)}
        number = str(query["run_id"][0] if method == "GET" else body["run_id"])
        if number not in self.applications:
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": f"Run {number} does not exist."}
        run = self.applications[number]
        if name == "cancel":
            if run["state"]["life_cycle_state"] != "TERMINATED":
                run["state"] = {"life_cycle_state": "TERMINATED", "result_state": "CANCELED", "state_message": ""}
            return 200, {}
        return 200, run

    def finish(self, state: str, reason: str = "") -> None:
        """Set the state of the newest run."""
        results = {"succeeded": "SUCCESS", "failed": "FAILED", "killed": "CANCELED"}
        life = {"life_cycle_state": "RUNNING"} if state == "running" else {"life_cycle_state": "TERMINATED"}
        result = {} if state == "running" else {"result_state": results[state]}
        self.newest["state"] = {**life, **result, "state_message": reason}


class FakeEmr(FakeService):
    """Steps of an EMR cluster (JSON protocol of AWS)."""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        """Answer as EMR."""
        name = query["target"][0].rpartition(".")[2]
        if name == "AddJobFlowSteps":
            (step,) = body["Steps"]
            number = f"s-{len(self.applications) + 1}"
            self.applications[number] = {"Id": number, "Name": step["Name"], "Status": {"State": "PENDING"}}
            return 200, {"StepIds": [number]}
        if name == "ListSteps":
            return 200, {"Steps": list(self.applications.values())[::-1]}
        number = body["StepId"] if name == "DescribeStep" else body["StepIds"][0]
        if number not in self.applications:
            return 400, {"__type": "InvalidRequestException", "message": f"Step id '{number}' is not valid."}
        step = self.applications[number]
        if name == "CancelSteps":
            is_new = step["Status"]["State"] in ("PENDING", "RUNNING")
            step["Status"] = {"State": "CANCELLED"} if is_new else step["Status"]
            return 200, {"CancelStepsInfoList": [{"StepId": number, "Status": "SUBMITTED" if is_new else "FAILED"}]}
        return 200, {"Step": step}

    def finish(self, state: str, reason: str = "") -> None:
        """Set the state of the newest step."""
        states = {"running": "RUNNING", "succeeded": "COMPLETED", "failed": "FAILED"}
        details = {"Reason": "Unknown Error.", "Message": reason, "LogFile": "s3://logs/step/stderr.gz"}
        self.newest["Status"] = {"State": states[state], "FailureDetails": details}


class FakeEmrServerless(FakeService):
    """Job runs of an EMR Serverless application."""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        """Answer as EMR Serverless."""
        _, _, application, _, *ids = path.split("/")
        if method == "POST":
            for number, run in self.applications.items():
                if run["token"] == body["clientToken"]:
                    return 200, {"applicationId": application, "jobRunId": number, "arn": "a"}
            number = f"run{len(self.applications) + 1}"
            run = {"applicationId": application, "jobRunId": number, "id": number, "name": body["name"]}
            self.applications[number] = {**run, "token": body["clientToken"], "state": "SUBMITTED", "stateDetails": ""}
            return 200, {"applicationId": application, "jobRunId": number, "arn": "a"}
        if not ids:
            return 200, {"jobRuns": list(self.applications.values())}
        if ids[0] not in self.applications:
            return 404, {"__type": "ResourceNotFoundException", "message": f"JobRun {ids[0]} does not exist"}
        run = self.applications[ids[0]]
        if method == "DELETE":
            run["state"] = "CANCELLED" if run["state"] in ("SUBMITTED", "RUNNING") else run["state"]
            return 200, {"applicationId": application, "jobRunId": ids[0]}
        return 200, {"jobRun": run}

    def finish(self, state: str, reason: str = "") -> None:
        """Set the state of the newest job run."""
        states = {"running": "RUNNING", "succeeded": "SUCCESS", "failed": "FAILED"}
        self.newest.update(state=states[state], stateDetails=reason)


@contextmanager
def served(fake: FakeService) -> Iterator[FakeService]:
    """Run the fake as an HTTP server for the time of a `with` block."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            url = urlparse(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(length)
            body = json.loads(text) if text else None
            fake.requests.append(f"{self.command} {url.path}")
            fake.bodies.append(body)
            if fake.down:
                status, document = 503, {"message": "down"}
            else:
                query = {**parse_qs(url.query), "target": [self.headers.get("X-Amz-Target") or ""]}
                status, document = fake.answer(self.command, url.path, query, body)
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    fake.url = f"http://{HOST}:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
