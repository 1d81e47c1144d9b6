"""An HTTP server through which Hudi's storage-based lock uses a lock file of this project, with the requests of S3.

Hudi's clients for object stores are in separate bundles, and there is none for local disks. The Java class
S3StorageLockClient takes the place of the one for S3; BridgedStorageLockProvider connects it with this server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.locks.storage import LOCK_PATH
from tests.support.hudi import JARS, ROOT

S3_CLIENT = Path(__file__).with_name("S3StorageLockClient.java")
SOURCES = (Path(__file__).with_name("BridgedStorageLockProvider.java"), S3_CLIENT)
PROVIDER = "BridgedStorageLockProvider"


def compiled(directory: Path, *sources: Path) -> Path:
    """Compile Java classes with Hudi's bundle and return the directory of the results; skip without a JDK."""
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which(str(Path(home) / "bin" / "javac") if home else "javac")
    jars = sorted((ROOT / ".jars").glob(JARS))
    spark = sorted((ROOT / ".venv-hudi").glob("lib/python3*/site-packages/pyspark/jars"))
    if javac is None or not jars or not spark:
        pytest.skip("missing: a JDK, or Apache Hudi's jar and its Spark; install one of Java 17, run `make interop`")
    command = [javac, "-proc:none", "-nowarn", "-cp", f"{jars[-1]}:{spark[-1]}/*", "-d", str(directory)]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


@contextmanager
def serving(storage: Storage) -> Iterator[str]:
    """Serve the lock file of the table in `storage` and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                data, tag = storage.get_tagged(LOCK_PATH)
            except NotFoundError:
                self._answer(404)
            else:
                self._answer(200, data, tag)

        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            assert "If-Match" in self.headers or self.headers["If-None-Match"] == "*"
            tag = storage.replace_if(LOCK_PATH, data, self.headers.get("If-Match"))
            self._answer(412) if tag is None else self._answer(200, tag=tag)

        def _answer(self, status: int, body: bytes = b"", tag: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if tag:
                self.send_header("ETag", tag)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/lock"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
