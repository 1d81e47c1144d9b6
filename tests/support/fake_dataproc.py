"""A fake Dataproc: a gRPC server with the methods of JobController, called by the real client of the hook."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import pytest

_SERVICE = "google.cloud.dataproc.v1.JobController"
_STATES = {"running": "RUNNING", "succeeded": "DONE", "failed": "ERROR", "killed": "CANCELLED"}


class FakeDataproc:
    """Jobs by id."""

    def __init__(self) -> None:
        self.applications: dict[str, Any] = {}
        self.down = False
        self.url = ""

    def finish(self, state: str, reason: str = "") -> None:
        """Set the state of the newest job."""
        from google.cloud.dataproc_v1.types import JobStatus

        job = list(self.applications.values())[-1]
        job.status = JobStatus(state=_STATES[state], details=reason)

    def answer(self, method: str, request: Any, context: Any) -> Any:
        """Answer a call."""
        import grpc
        from google.cloud.dataproc_v1.types import JobStatus

        if self.down:
            context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        if method == "SubmitJob":
            job = request.job
            job.status = JobStatus(state="PENDING")
            return self.applications.setdefault(job.reference.job_id, job)
        if request.job_id not in self.applications:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such job")
        job = self.applications[request.job_id]
        if method == "CancelJob":
            if job.status.state.name in ("DONE", "ERROR", "CANCELLED"):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the job has ended")
            job.status = JobStatus(state="CANCELLED")
        return job


@contextmanager
def dataproc_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDataproc]:
    """Run the server, and connect the clients of the provider's hook to it."""
    import grpc
    from airflow.providers.google.cloud.hooks.dataproc import DataprocHook
    from google.cloud.dataproc_v1 import JobControllerClient
    from google.cloud.dataproc_v1.services.job_controller.transports import JobControllerGrpcTransport
    from google.cloud.dataproc_v1.types import CancelJobRequest, GetJobRequest, Job, SubmitJobRequest

    fake = FakeDataproc()

    def handler(method: str, kind: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: fake.answer(method, request, context),
            request_deserializer=kind.deserialize,
            response_serializer=Job.serialize,
        )

    kinds = {"SubmitJob": SubmitJobRequest, "GetJob": GetJobRequest, "CancelJob": CancelJobRequest}
    handlers = {method: handler(method, kind) for method, kind in kinds.items()}
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    client = JobControllerClient(transport=JobControllerGrpcTransport(channel=channel))
    monkeypatch.setattr(DataprocHook, "get_job_client", lambda self, region=None: client)
    # The client repeats a call to a server that is down for fifteen minutes.
    for name in ("get_job", "submit_job", "cancel_job"):
        method = client._transport._wrapped_methods[getattr(client._transport, name)]
        method._retry = None
    try:
        yield fake
    finally:
        channel.close()
        server.stop(None)
