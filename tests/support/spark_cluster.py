"""Run a Spark standalone cluster on 127.0.0.1: one master and several workers, each in a process of its own.

The environment of a worker is small: executors get nothing of the environment of the tests, as on other hosts.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pyspark

from tests.support.waiting import until

HOST = "127.0.0.1"
REPOSITORY = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
#: The start of Spark may be slow on a busy machine.
DEADLINE_S = 300
#: Seconds after which a job that hangs is ended.
JOB_S = 300
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Settings of all jobs: small executors, which are lost fast, and few shuffle partitions.
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": _JVM,
    "spark.executor.extraJavaOptions": _JVM,
    "spark.network.timeout": "60s",
    "spark.executor.heartbeatInterval": "1s",
}


def bare_python(folder: Path) -> Path:
    """Write a `python3` without any installed package into a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "python3"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -s "$@"\n')
    program.chmod(0o755)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCluster:
    """A running cluster. `page` is the URL of the master's page as JSON; `folder` has the logs and the work folders."""

    master: str
    page: str
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def submit(self, *words: str, conf: Mapping[str, str] | None = None, **variables: str) -> subprocess.Popen[str]:
        """Start a job by spark-submit in client mode; `words` are the script and its arguments."""
        settings = {**SETTINGS, **(conf or {})}
        flags = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        environment = {
            **_environment(),
            "PYTHONPATH": str(REPOSITORY),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONSAFEPATH": "1",
            "HOME": os.environ.get("HOME", "/"),
            **variables,
        }
        return subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master, *flags, *words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str, conf: Mapping[str, str] | None = None, **variables: str) -> tuple[int, str]:
        """Run a job and return its exit code and its output."""
        return finished(self.submit(*words, conf=conf, **variables))

    def executors(self) -> list[psutil.Process]:
        """Return the JVMs of the running executors."""
        workers = [psutil.Process(p.pid) for name, p in self.processes.items() if name != "master" and p.poll() is None]
        children = [child for worker in workers for child in worker.children()]
        return [child for child in children if "CoarseGrainedExecutorBackend" in _words(child)]

    def logs(self) -> str:
        """Return the logs of the master, the workers and all executors."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("work-*/*/*/std*")]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')}" for path in sorted(paths))

    def state(self) -> dict[str, Any]:
        """Return the state that the master's page shows."""
        with urlopen(self.page, timeout=5) as answer:
            state: dict[str, Any] = json.load(answer)
        return state


def finished(job: subprocess.Popen[str], limit_s: int = JOB_S) -> tuple[int, str]:
    """Wait for the end of a job, which has a time limit; return its exit code and its output."""
    try:
        output, _ = job.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        end_session(job)
        raise AssertionError(f"the job did not end within {limit_s} s") from None
    return job.returncode, output


def end_session(process: subprocess.Popen[Any]) -> None:
    """Kill all processes of a process's session."""
    for each in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(each.pid) == process.pid:
                each.kill()
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def spark_cluster(folder: Path, *, workers: int = 2, cores: int = 2, **variables: str) -> Iterator[SparkCluster]:
    """Run a master and workers, whose environment has the `variables`; end them and their executors afterwards."""
    port, page = free_ports(2)
    cluster = SparkCluster(master=f"spark://{HOST}:{port}", page=f"http://{HOST}:{page}/json/", folder=folder)
    try:
        words = ["--host", HOST, "--port", str(port), "--webui-port", str(page)]
        _start(cluster, "master", "org.apache.spark.deploy.master.Master", words, {})
        _wait(cluster, lambda: cluster.state() is not None)
        for number in range(workers):
            start_worker(cluster, f"worker-{number}", cores, **variables)
        _wait(cluster, lambda: cluster.state()["aliveworkers"] == workers)
        yield cluster
    finally:
        for process in reversed(cluster.processes.values()):
            end_session(process)


def start_worker(cluster: SparkCluster, name: str, cores: int = 2, **variables: str) -> None:
    """Start a worker; `variables` are added to its small environment, which its executors inherit."""
    # Spark runs no duplicate of a task on the host of its first attempt, so each worker has an address of its own.
    address = f"127.0.0.{len(cluster.processes) + 1}"
    variables = {"SPARK_LOCAL_IP": address, **variables}
    words = ["--host", address, "--webui-port", "0", "--cores", str(cores), "--memory", "2g"]
    words += ["--work-dir", str(cluster.folder / f"work-{name}"), cluster.master]
    _start(cluster, name, "org.apache.spark.deploy.worker.Worker", words, variables)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that no process listens on."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    try:
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


def _start(cluster: SparkCluster, name: str, kind: str, words: Sequence[str], variables: Mapping[str, str]) -> None:
    command = [str(SPARK_HOME / "bin" / "spark-class"), kind, *words]
    daemon = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _JVM}
    with (cluster.folder / f"{name}.log").open("wb") as log:
        cluster.processes[name] = subprocess.Popen(
            command,
            cwd=cluster.folder,
            env={**_environment(), **daemon, **variables},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    """Return an environment without settings of the tests: programs of the system, and Spark."""
    java = {name: os.environ[name] for name in ("JAVA_HOME", "JDK_JAVA_OPTIONS", "TMPDIR") if name in os.environ}
    return {"PATH": os.environ["PATH"], "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": HOST, "TZ": "UTC", **java}


def _wait(cluster: SparkCluster, condition: Any) -> None:
    def holds() -> bool:
        with suppress(URLError, OSError):
            return bool(condition())
        return False

    assert until(holds, DEADLINE_S), cluster.logs()[-5000:]


def _words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
