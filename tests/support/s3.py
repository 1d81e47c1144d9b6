"""Run an S3 server (moto) in this process, and a proxy that drops, rejects or delays chosen requests."""

from __future__ import annotations

import http.client
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import pytest
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

BUCKET = "lake"
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server with one bucket."""

    endpoint: str
    bucket: str = BUCKET

    @property
    def options(self) -> dict[str, str]:
        """Storage options to connect to the server."""
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.access.key": "key",
            "fs.s3a.secret.key": "secret",
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.attempts.maximum": "3",
        }

    def client(self):
        """Return a boto3 client, for details that lakehouse's storage does not expose."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )


def _make_puts_atomic(patch: pytest.MonkeyPatch) -> None:
    """Serialise puts: moto checks the condition of a put and stores the object in two steps, which S3 does in one."""
    lock, put = threading.Lock(), S3Response.put_object

    def put_object(response: S3Response) -> Any:
        with lock:
            return put(response)

    patch.setattr(S3Response, "put_object", put_object)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Run a moto server with an empty bucket `lake` on a free port of 127.0.0.1."""
    patch = pytest.MonkeyPatch()
    _make_puts_atomic(patch)
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address=HOST, port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        running = S3Server(endpoint=f"http://{HOST}:{port}")
        running.client().create_bucket(Bucket=BUCKET)
        yield running
    finally:
        server.stop()
        patch.undo()


class FaultyProxy:
    """Forward requests to a server, except those for which a fault is queued.

    `faults[method]` is a queue with one word for each future request of that method:

        pass            forward
        <status>        answer with this status, forward nothing
        <status>-after  forward, then answer with this status
        drop            close the connection, forward nothing
        drop-after      forward, then close the connection without an answer
    """

    def __init__(self, upstream: str) -> None:
        self.faults: dict[str, list[str]] = {}
        self.seen: list[str] = []
        self.targets: list[str] = []
        self._upstream = upstream.removeprefix("http://")
        self._server = ThreadingHTTPServer((HOST, 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        self.endpoint = f"http://{HOST}:{self._server.server_port}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                queue = proxy.faults.get(self.command, [])
                fault = queue.pop(0) if queue else "pass"
                proxy.seen.append(f"{self.command} {fault}")
                proxy.targets.append(self.path)
                what, _, when = fault.partition("-")
                if what == "pass" or when == "after":
                    answer = proxy._forward(self.command, self.path, dict(self.headers), body)
                if what == "drop":
                    self.close_connection = True
                elif what == "pass":
                    self._answer(*answer)
                else:
                    self._answer(int(what), {}, b"<Error><Code>Injected</Code></Error>")

            def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response_only(status)
                length = headers.get("Content-Length") if self.command == "HEAD" else None
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length or str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Suppress the log of requests."""

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve

        return Handler

    def _forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self._upstream, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[FaultyProxy]:
    """Run a proxy in front of the server; storage opened with `proxied(...)` uses it."""
    proxy = FaultyProxy(s3_server.endpoint)
    yield proxy
    proxy.close()
