"""HDFS, and optionally YARN, in one JVM on free ports of 127.0.0.1, from the jars that `make hadoop` fetches.

with hadoop_at(directory, nodemanagers=1) as hadoop:
    hadoop.root           hdfs://127.0.0.1:<port>, or hdfs://lake with two namenodes
    hadoop.conf           a HADOOP_CONF_DIR with core-site.xml, hdfs-site.xml and yarn-site.xml
    hadoop.environment    the environment variables for clients, such as spark-submit --master yarn
    hadoop.calls()        the number of calls per method of the namenode since its start
    hadoop.command("safemode enter")    see HadoopServer.java
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from html import escape
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import IO

import pytest

from tests.support.postgresql import HOST

JARS = Path(__file__).resolve().parents[2] / ".jars" / "hadoop"
SOURCE = Path(__file__).with_name("HadoopServer.java")
NAMESERVICE = "lake"
_FLAGS = ("-Xmx900m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
# Hadoop's reflection into classes of the JDK.
_OPENS = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util", "java.util.concurrent")
)
_START_S = 180
_COMMAND_S = 120
_numbers = count(1)

#: Small blocks and files are allowed, and a client of a failed namenode retries soon.
_HDFS_SETTINGS = {
    "dfs.replication": "1",
    "dfs.namenode.fs-limits.min-block-size": "1024",
    "dfs.ha.tail-edits.period": "1",
    "dfs.datanode.max.transfer.threads": "4096",
    "ipc.client.connect.max.retries": "3",
    "dfs.namenode.safemode.extension": "0",
}
_YARN_SETTINGS = {
    "yarn.minicluster.fixed.ports": "true",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    "yarn.minicluster.yarn.nodemanager.resource.memory-mb": "6144",
    "yarn.nodemanager.resource.memory-mb": "6144",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
    # A node manager refuses containers on a disk that is 90 % full.
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
    "yarn.nodemanager.hostname": HOST,
    "yarn.nodemanager.bind-host": HOST,
    "yarn.nodemanager.address": f"{HOST}:0",
    "yarn.nodemanager.localizer.address": f"{HOST}:0",
    "yarn.nodemanager.webapp.address": f"{HOST}:0",
    "yarn.resourcemanager.hostname": HOST,
    "yarn.resourcemanager.bind-host": HOST,
}
_YARN_PORTS = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")


@dataclass(slots=True, kw_only=True)
class Hadoop:
    """A running server.

    Attributes:
        root: URL of the file system.
        conf: Directory with the configuration of clients.
        log: Log of the JVM.
        resource_manager: URL of the resource manager's REST API; None without YARN.
        ports: Ports of the namenodes.
    """

    root: str
    conf: Path
    log: Path
    resource_manager: str | None
    ports: tuple[int, ...]
    process: subprocess.Popen[str]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for clients."""
        return {"HADOOP_CONF_DIR": str(self.conf), "YARN_CONF_DIR": str(self.conf)}

    def command(self, line: str) -> str:
        """Send a command of HadoopServer.java and return its answer; fail with the Java exception."""
        sender, receiver = self.process.stdin, self.process.stdout
        assert sender is not None and receiver is not None
        with self._lock:
            sender.write(line + "\n")
            sender.flush()
            status, _, answer = _line(self.process, self.log, _COMMAND_S).partition(" ")
        assert status == "ok", f"{line}: {answer}"
        return answer

    def calls(self, node: int = 0) -> dict[str, int]:
        """Return the number of calls per method of a namenode since its start."""
        pairs = (pair.partition("=") for pair in self.command(f"calls {node}").split())
        return {method: int(number) for method, _, number in pairs}

    def place(self) -> str:
        """Return the URL of a directory that no other test uses."""
        return f"{self.root}/test-{next(_numbers)}"


@contextmanager
def hadoop_at(
    place: Path,
    *,
    namenodes: int = 1,
    datanodes: int = 1,
    nodemanagers: int = 0,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Hadoop]:
    """Run the server for the time of a `with` block, with its files in the directory `place`.

    Args:
        place: Directory of all files; it is created.
        namenodes: 2 for a pair with the nameservice `lake`, whose first namenode is active.
        datanodes: Number of datanodes.
        nodemanagers: Number of nodemanagers of YARN; 0 for HDFS only.
        settings: Further settings of Hadoop, for server and clients.
    """
    classes = _compiled(place)
    ports = _free_ports(namenodes + len(_YARN_PORTS))
    own = {**_HDFS_SETTINGS, **(_yarn_settings(ports[namenodes:]) if nodemanagers else {}), **(settings or {})}
    names, root = ports[:namenodes], f"hdfs://{HOST}:{ports[0]}" if namenodes == 1 else f"hdfs://{NAMESERVICE}"
    java = shutil.which("java")
    assert java is not None
    log = place / "log"
    command = [java, *_FLAGS, *_OPENS, f"-Djava.io.tmpdir={place}", f"-Dtest.build.data={place}/data"]
    command += ["-cp", f"{classes}:{JARS}/*", "HadoopServer", str(place), ",".join(map(str, names))]
    command += [str(datanodes), str(nodemanagers), *(f"{key}={value}" for key, value in own.items())]
    with ExitStack() as stack:
        errors = stack.enter_context(open(log, "wb"))
        process = subprocess.Popen(
            command, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        stack.callback(_stop, process)
        while (line := _line(process, log, _START_S)) != "ready":
            errors.write(line.encode() + b"\n")
        yield Hadoop(
            root=root,
            conf=_write_configuration(place / "conf", root, names, own),
            log=log,
            resource_manager=f"http://{own['yarn.resourcemanager.webapp.address']}" if nodemanagers else None,
            ports=tuple(names),
            process=process,
        )


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    """One HDFS with one namenode for all tests of a process; skip the test if hdfs-native is not installed."""
    if find_spec("hdfs_native") is None:
        pytest.skip("missing: hdfs-native; install lakehouse-tables[hdfs]")
    with hadoop_at(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


def _compiled(place: Path) -> Path:
    """Compile HadoopServer.java and return the directory of its class; skip the test without the jars."""
    javac = shutil.which("javac")
    if javac is None or shutil.which("java") is None or not any(JARS.glob("hadoop-minicluster-*.jar")):
        pytest.skip("missing: jars of Hadoop and a JDK; `make hadoop` fetches the jars with mvn")
    classes = place / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    command = [javac, "-proc:none", "-nowarn", "-cp", f"{JARS}/*", "-d", str(classes), str(SOURCE)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return classes


def _free_ports(number: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free and differ."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _yarn_settings(ports: list[int]) -> dict[str, str]:
    addresses = {
        f"yarn.resourcemanager.{name}": f"{HOST}:{port}" for name, port in zip(_YARN_PORTS, ports, strict=True)
    }
    return {**_YARN_SETTINGS, **addresses}


def _write_configuration(conf: Path, root: str, ports: list[int], settings: Mapping[str, str]) -> Path:
    """Write the three files that clients read, and return their directory."""
    hdfs = {"dfs.replication": settings["dfs.replication"]}
    if len(ports) > 1:
        nodes = [f"nn{number + 1}" for number in range(len(ports))]
        hdfs |= {"dfs.nameservices": NAMESERVICE, f"dfs.ha.namenodes.{NAMESERVICE}": ",".join(nodes)}
        for node, port in zip(nodes, ports, strict=True):
            hdfs[f"dfs.namenode.rpc-address.{NAMESERVICE}.{node}"] = f"{HOST}:{port}"
        provider = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        hdfs[f"dfs.client.failover.proxy.provider.{NAMESERVICE}"] = provider
    yarn = {key: value for key, value in settings.items() if key.startswith("yarn.")}
    conf.mkdir(exist_ok=True)
    for name, values in (("core", {"fs.defaultFS": root}), ("hdfs", hdfs), ("yarn", yarn)):
        (conf / f"{name}-site.xml").write_text(_site(values))
    return conf


def _site(values: Mapping[str, str]) -> str:
    lines = (
        f"  <property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
        for key, value in values.items()
    )
    return f'<?xml version="1.0"?>\n<configuration>\n{"".join(lines)}</configuration>\n'


def _line(process: subprocess.Popen[str], log: Path, limit_s: float) -> str:
    """Return the next line of the server; fail with its log if it ends or takes too long."""
    receiver: IO[str] | None = process.stdout
    assert receiver is not None
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    try:
        line = receiver.readline()
    finally:
        timer.cancel()
    assert line, f"the server ended: {log.read_text(errors='replace')[-3000:]}"
    return line.rstrip("\n")


def _stop(process: subprocess.Popen[str]) -> None:
    """End the server and wait until it has ended."""
    assert process.stdin is not None and process.stdout is not None
    process.kill()
    process.wait(timeout=60)
    process.stdin.close()
    process.stdout.close()
