"""A ZooKeeper server on a free port of 127.0.0.1, from the jar installed on this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgresql import HOST, free_port, wait_for_port

JAR = Path("/usr/share/java/zookeeper.jar")
TICK_MS = 200


@pytest.fixture(scope="session")
def zookeeper_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address `host:port` of a ZooKeeper server that allows short sessions."""
    java = shutil.which("java")
    if java is None or not JAR.exists():
        pytest.skip("missing: ZooKeeper's jar and java; on Debian: apt-get install zookeeper")
    place, port = tmp_path_factory.mktemp("zookeeper"), free_port()
    settings = {
        "tickTime": TICK_MS,
        "dataDir": place / "data",
        "clientPort": port,
        "clientPortAddress": HOST,
        "maxClientCnxns": 0,
        "minSessionTimeout": 2 * TICK_MS,
        "admin.enableServer": "false",
    }
    config = place / "zoo.cfg"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with open(place / "log", "wb") as log:
        server = subprocess.Popen(
            [java, "-Xmx128m", "-cp", JAR, "org.apache.zookeeper.server.quorum.QuorumPeerMain", config],
            cwd=place,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for_port(server, port, place / "log")
        yield f"{HOST}:{port}"
    finally:
        server.terminate()
        server.wait(timeout=30)
