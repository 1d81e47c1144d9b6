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
    """A registry of schemas; ids are positions in `schemas`, from 1.

    A schema is the text of Avro, or the answer about a file of Protocol Buffers. `subjects` has the answers about files
    to which others refer, by their paths.
    """

    url: str
    schemas: list[str | dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, dict[str, Any]] = field(default_factory=dict)
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

    def framed(self, schema: dict[str, Any], indexes: bytes, message: bytes) -> bytes:
        """Register the answer about a file of Protocol Buffers and return a message in the wire format."""
        if schema not in self.schemas:
            self.schemas.append(schema)
        return struct.pack(">bI", 0, self.schemas.index(schema) + 1) + indexes + message


def protobuf_schema(file: Any, *references: tuple[str, str]) -> dict[str, Any]:
    """Return the registry's answer about a file; `references` are names and subjects of files that it imports."""
    refers = [{"name": name, "subject": subject, "version": 1} for name, subject in references]
    text = base64.b64encode(file.SerializeToString()).decode()
    return {"schema": text, "schemaType": "PROTOBUF", "references": refers}


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
            path = self.path.partition("?")[0]
            found: Any = registry.subjects.get(path)
            if path.startswith("/schemas/ids/"):
                number = int(path.removeprefix("/schemas/ids/"))
                found = registry.schemas[number - 1] if 0 < number <= len(registry.schemas) else None
            is_known = found is not None
            reply: dict[str, Any] = {"schema": found} if isinstance(found, str) else found or {"error_code": 40403}
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
