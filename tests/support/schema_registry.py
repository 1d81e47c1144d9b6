"""A server with the part of the schema registry's protocol that readers and writers of messages use."""

from __future__ import annotations

import base64
import io
import json
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro

from tests.support.postgresql import HOST


@dataclass
class SchemaRegistry:
    """A registry of schemas; ids are positions in `schemas`, from 1."""

    url: str
    schemas: list[str] = field(default_factory=list)
    requests: int = 0
    login: str = ""

    def encoded(self, schema: Mapping[str, Any], record: Mapping[str, Any]) -> bytes:
        """Register a schema and return a record in the wire format."""
        text = json.dumps(schema)
        if text not in self.schemas:
            self.schemas.append(text)
        body = io.BytesIO()
        fastavro.schemaless_writer(body, fastavro.parse_schema(dict(schema)), record)
        return struct.pack(">bI", 0, self.schemas.index(text) + 1) + body.getvalue()


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """Run a registry on a free port of 127.0.0.1 for the time of a `with` block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.requests += 1
            expected = "Basic " + base64.b64encode(registry.login.encode()).decode()
            if registry.login and self.headers.get("Authorization") != expected:
                self.send_response(401)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            number = int(self.path.removeprefix("/schemas/ids/"))
            is_known = 0 < number <= len(registry.schemas)
            reply: dict[str, Any] = {"schema": registry.schemas[number - 1]} if is_known else {"error_code": 40403}
            body = json.dumps(reply).encode()
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer((HOST, 0), Handler)
    registry = SchemaRegistry(url=f"http://{HOST}:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
