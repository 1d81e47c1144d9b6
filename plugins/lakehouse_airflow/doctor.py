"""Checks of `lakehouse doctor` in Airflow's environment. Checks of Spark's environment run in a child process there.

The functions are registered in `FUNCTIONS` under the names of `lakehouse.spec.contracts.doctor.CHECKS`.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pkgutil import walk_packages
from typing import Any

import psutil

import lakehouse
import lakehouse_airflow
from lakehouse.errors import UserError
from lakehouse.spec.contracts.dag_states import DagStates
from lakehouse.spec.contracts.doctor import CHECKS, CheckedEnvironment, CheckResult, CheckState, DoctorReport
from lakehouse.spec.contracts.pools import PoolFacts
from lakehouse.spec.reports_folder import REPORTS, is_folder, reports_folder
from lakehouse.spec.secrets import redact_text
from lakehouse.spec.table.table_spec import TableSpec
from lakehouse_airflow.commands import command_line
from lakehouse_airflow.compat import PAGES, BaseHook, missing_text
from lakehouse_airflow.compat.versions import airflow_version, package_problem, version_problem
from lakehouse_airflow.data_intervals import airflow_zone
from lakehouse_airflow.doctor_facts import CONNECT_S, AirflowFacts, Check, Result, deferred_ingestions
from lakehouse_airflow.doctor_runtime import check_executor, check_paused_dags, check_scheduler, check_triggerer
from lakehouse_airflow.job_environment import (
    catalog_variables,
    connection_variables,
    spec_references,
    spec_variables,
)
from lakehouse_airflow.pools import INGEST, POOLS, SERVICES, SETUP, spec_pools
from lakehouse_airflow.spark_environment import SPARK_MASTER, spark_environment
from lakehouse_airflow.specs import folders_of_dag, load_specs

CONNECTION = "spark_default"
_PAGES, _COMPAT = "lakehouse_airflow.api", "lakehouse_airflow.compat"
_PROVIDER = "apache-airflow-providers-apache-spark"
_LEAST_PROVIDER = (6, 3)
_JOB_S = 600
_STANDALONE, _STANDALONE_PORT = "spark://", 7077
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
#: Spark's default of spark.driver.memory, and the memory of the Python driver and of the JVM outside of its heap.
_DRIVER_BYTES, _BESIDE_HEAP_BYTES = 1 << 30, 1 << 29
#: Types of file systems that several hosts can mount.
_SHARED = (
    "nfs",
    "cifs",
    "smb",
    "ceph",
    "gluster",
    "lustre",
    "gpfs",
    "beegfs",
    "fuse.",
    "9p",
    "virtiofs",
    "afs",
    "ocfs",
)
_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}
_NO_FACTS = (
    "the scheduler stored no pools and DAGs in this run, because it has not loaded the plugin of lakehouse. "
    "Restart the scheduler"
)


def examine(
    environ: Mapping[str, str],
    names: Iterable[str] = (),
    *,
    pools: PoolFacts | None = None,
    dags: DagStates | None = None,
    in_task: bool = False,
) -> DoctorReport:
    """Run the checks of both environments and return their results in the order of `CHECKS`.

    Args:
        environ: Environment variables.
        names: Names of the checks; all checks by default.
        pools: The pools that the scheduler stored in the run.
        dags: The DAG states that the scheduler stored in the run.
        in_task: Whether this process is a task, which cannot read Airflow's database.
    """
    chosen = [name for name in CHECKS if name in set(names or CHECKS)]
    if in_task:
        return _examined(environ, chosen, {"pools": pools, "dags": dags, "problem": _NO_FACTS})
    # Imported here, because tasks also import this module and must not open Airflow's database.
    database: Any = import_module("lakehouse_airflow.doctor_database")
    with database.connections_of_database():
        return _examined(environ, chosen, _read(database))


def _examined(environ: Mapping[str, str], chosen: list[str], facts_of_airflow: Mapping[str, Any]) -> DoctorReport:
    specs = load_specs(tuple(f for f in folders_of_dag(environ.get("AIRFLOW_CTX_DAG_ID"), environ) if f.is_dir())).good
    spark = [name for name in chosen if CHECKS[name].environment is CheckedEnvironment.SPARK]
    report, failure = (None, "")
    if spark or "versions" in chosen:
        report, failure = _spark_report(environ, specs, spark or ["python"])
    facts = AirflowFacts(
        environ=environ,
        specs=specs,
        report=report,
        report_problem=failure,
        **facts_of_airflow,
    )
    results = [_result(name, FUNCTIONS[name], facts) for name in chosen if name in FUNCTIONS]
    results += [check for check in (report.checks if report else ()) if check.name in spark]
    return DoctorReport(
        lakehouse_version=lakehouse.__version__, python_version=sys.version.split()[0], checks=tuple(results)
    )


def _read(database: Any) -> dict[str, Any]:
    """Read the facts from Airflow's database. Return the problem instead if the database does not answer."""
    try:
        facts = {"pools": database.read_pools(), "dags": database.read_dags(), "queued": database.read_queued_tasks()}
    except Exception as error:
        facts = {"problem": f"Airflow's database does not answer: {type(error).__name__}: {error}"}
    return {**facts, "health": database.read_health}


def check_airflow(facts: AirflowFacts) -> Result:
    """Check the versions of Airflow and its Spark provider, and that pyspark is not installed in this environment."""
    del facts
    provider, problem = _version(_PROVIDER), version_problem(airflow_version())
    if problem:
        return CheckState.FAILED, problem
    text = f"Airflow {airflow_version()}, {_PROVIDER} {provider}"
    if provider is None or _numbers(provider) < _LEAST_PROVIDER:
        return CheckState.FAILED, f"{text}: needed is version 6.3 or newer of the provider"
    if _version("pyspark") is not None:
        return CheckState.FAILED, f"{sys.prefix} contains both pyspark and Airflow's Spark provider"
    if package_problem():
        return CheckState.WARNING, f"{text}; {package_problem()}"
    return CheckState.OK, "; ".join(filter(None, (text, missing_text())))


def check_plugin(facts: AirflowFacts) -> Result:
    """Check that plugin and provider are registered, and that all modules of the plugin can be imported.

    The plugin may also be in the deployment's plugins folder.
    """
    broken = _broken_modules()
    if broken:
        return CheckState.FAILED, f"modules of the plugin cannot be imported: {'; '.join(broken)}"
    missing = [
        group
        for group in ("airflow.plugins", "apache_airflow_provider")
        if not any(entry.value.startswith("lakehouse_airflow.") for entry in entry_points(group=group))
    ]
    if not missing:
        return CheckState.OK, "plugin and provider are registered as entry points"
    if facts.pools is not None:
        return CheckState.WARNING, f"without entry points {', '.join(missing)}; the plugin comes from a plugins folder"
    return CheckState.FAILED, f"without entry points {', '.join(missing)}"


def check_pools(facts: AirflowFacts) -> Result:
    """Check that all pools exist and have slots."""
    if facts.pools is None:
        return CheckState.FAILED, facts.problem
    needed = {*facts.pools.needed, *spec_pools(facts.specs)} or {setting.name for setting in POOLS}
    slots = facts.pools.slots
    missing = sorted(needed - slots.keys())
    if missing:
        return CheckState.FAILED, f"missing: {', '.join(missing)}; tasks in them fail at the start of a run (`{SETUP}`)"
    empty = sorted(name for name in needed if slots[name] == 0)
    if empty:
        return CheckState.FAILED, f"without slots: {', '.join(empty)}; their tasks wait"
    return CheckState.OK, ", ".join(f"{name} {_slots(slots[name])}" for name in sorted(needed))


def check_spark_connection(facts: AirflowFacts) -> Result:
    """Check the Airflow connection of Spark jobs, and its master."""
    master = facts.environ.get(SPARK_MASTER)
    try:
        connection = BaseHook.get_connection(CONNECTION)
    except Exception as error:
        if master:
            return CheckState.OK, f"no connection {CONNECTION}; {SPARK_MASTER}={master}"
        unread = f" ({facts.problem})" if facts.problem and facts.queued is None and not facts.pools else ""
        return CheckState.FAILED, f"the connection {CONNECTION} does not exist or does not parse: {error}{unread}"
    host = str(connection.host or "")
    if not host:
        return CheckState.FAILED, f"the connection {CONNECTION} has no host, so Spark would submit to YARN"
    address = f"{host}:{connection.port}" if connection.port else host
    state, description = _master(address, facts.environ)
    if str(connection.extra_dejson.get("deploy-mode", "client")) == "client" or state is CheckState.FAILED:
        return state, description
    shared, where = cluster_reports(facts.environ)
    return shared, f"{description}, with deploy-mode cluster: {where}"


def check_spark_home(facts: AirflowFacts) -> Result:
    """Check that Spark's environment exists and that lakehouse runs in it."""
    try:
        spark = spark_environment(facts.environ)
    except UserError as error:
        return CheckState.FAILED, str(error)
    if facts.report_problem:
        return CheckState.FAILED, facts.report_problem
    return CheckState.OK, f"{spark.binary} runs {spark.application}"


def check_versions(facts: AirflowFacts) -> Result:
    """Compare the versions of lakehouse in both environments."""
    if facts.report is None:
        return CheckState.FAILED, f"the version in Spark's environment is unknown: {facts.report_problem}"
    job = facts.report.lakehouse_version
    if job != lakehouse.__version__:
        return (
            CheckState.FAILED,
            f"lakehouse {lakehouse.__version__} in Airflow's environment, {job} in Spark's environment",
        )
    return CheckState.OK, f"lakehouse {job} in both environments"


def check_driver_memory(facts: AirflowFacts) -> Result:
    """Compare the memory of this host with the need of Spark drivers in all pool slots."""
    if facts.pools is None:
        return CheckState.SKIPPED, "the pools are unknown"
    names = {SERVICES.name, *spec_pools(facts.specs)} if facts.specs else {INGEST.name, SERVICES.name}
    slots = [facts.pools.slots.get(name, 0) for name in names]
    if -1 in slots:
        return CheckState.WARNING, "a pool of Spark jobs has no limit of slots, so drivers may use all memory"
    ingests = [one.ingest for spec in facts.specs for one in spec.ingestions if one.ingest is not None]
    settings = [ingest.spark.get("spark.driver.memory", "") for ingest in ingests]
    heap = max([_DRIVER_BYTES, *filter(None, map(_memory, settings))])
    # Drivers of streams that a trigger watches occupy no slot, so they are added.
    drivers = sum(slots) + len(deferred_ingestions(facts.specs))
    needed, present = drivers * (heap + _BESIDE_HEAP_BYTES), psutil.virtual_memory().total
    text = f"{drivers} drivers need up to {_gigabytes(needed)}; this host has {_gigabytes(present)}"
    return (CheckState.OK if needed <= present else CheckState.WARNING), text


def check_time_zone(facts: AirflowFacts) -> Result:
    """Check that Airflow's default time zone equals the time zones of data intervals."""
    zone = str(airflow_zone())
    ingests = (ingestion.ingest for spec in facts.specs for ingestion in spec.ingestions)
    publications = (spec.publication() for spec in facts.specs)
    # Service DAGs have data intervals in UTC.
    zones = {"UTC", *(one.timezone for one in ingests if one), *(one.timezone for one in publications if one)}
    others = sorted(zones - {zone})
    if not others:
        return CheckState.OK, zone
    return CheckState.WARNING, f"Airflow's time zone is {zone}, and DAGs have intervals in {', '.join(others)}"


#: Check function by check name, for all checks of Airflow's environment.
FUNCTIONS: Mapping[str, Check] = {
    "airflow": check_airflow,
    "plugin": check_plugin,
    "pools": check_pools,
    "spark_connection": check_spark_connection,
    "spark_home": check_spark_home,
    "versions": check_versions,
    "driver_memory": check_driver_memory,
    "scheduler": check_scheduler,
    "executor": check_executor,
    "triggerer": check_triggerer,
    "paused_dags": check_paused_dags,
    "time_zone": check_time_zone,
}


def _result(name: str, check: Check, facts: AirflowFacts) -> CheckResult:
    try:
        state, description = check(facts)
    except Exception as error:
        # An unexpected error in one check does not stop the others.
        state, description = CheckState.FAILED, f"unexpected error {type(error).__name__}: {error}"
    is_problem = state in (CheckState.FAILED, CheckState.WARNING)
    return CheckResult(
        name=name,
        environment=CheckedEnvironment.AIRFLOW,
        state=state,
        found=redact_text(" ".join(description.split())),
        advice=CHECKS[name].advice if is_problem else "",
    )


def _spark_report(
    environ: Mapping[str, str], specs: tuple[TableSpec, ...], names: Iterable[str]
) -> tuple[DoctorReport | None, str]:
    """Run the checks of Spark's environment. Return their report, or None with the problem."""
    words = ["doctor", "--environment", "spark", "--output", "json"]
    words += [word for name in names for word in ("--check", name)]
    try:
        arguments, variables = command_line(words, environ)
        values = [value for spec in specs for value in spec_references(spec)]
        for more in (catalog_variables(environ), connection_variables(environ, values), spec_variables(environ)):
            variables |= more
        done = subprocess.run(arguments, env=variables, capture_output=True, text=True, check=False, timeout=_JOB_S)
    except Exception as error:
        # Any secrets backend can provide connections, so their errors have no common class.
        return None, f"{type(error).__name__}: {error}"
    try:
        return DoctorReport.from_json(done.stdout), ""
    except UserError as error:
        last = done.stderr.strip().rpartition("\n")[2] or str(error)
        return None, f"`lakehouse doctor` in Spark's environment ended with exit code {done.returncode}: {last}"


def cluster_reports(environ: Mapping[str, str]) -> Result:
    """Check that drivers on other hosts can write their reports."""
    folder, place = reports_folder(environ), environ.get(REPORTS, "")
    if not is_folder(place):
        return CheckState.OK, f"reports in {place}"
    if not environ.get(REPORTS):
        return (
            CheckState.FAILED,
            f"{REPORTS} is not set, so drivers on other hosts write their reports to {folder} there",
        )
    mounts = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    place = next((str(path) for path in (folder, *folder.parents) if str(path) in mounts), "/")
    kind = mounts.get(place, "unknown")
    if kind.startswith(_SHARED):
        return CheckState.OK, f"reports in {folder}, on {kind}"
    return (
        CheckState.WARNING,
        f"{folder} is on {kind} of this host (mounted at {place}), and drivers run on other hosts. Set {REPORTS} to a "
        "folder that all hosts mount",
    )


def _master(address: str, environ: Mapping[str, str]) -> Result:
    """Check that the Spark master at an address can be used."""
    if address.startswith("k8s") and find_spec("airflow.providers.cncf") is None:
        return CheckState.FAILED, f"{address} needs apache-airflow-providers-cncf-kubernetes in Airflow's environment"
    if address.startswith("yarn") and not any(environ.get(name) for name in _HADOOP):
        return CheckState.FAILED, f"{address} needs {' or '.join(_HADOOP)}"
    if not address.startswith(_STANDALONE):
        return CheckState.OK, address
    errors = []
    for part in address.removeprefix(_STANDALONE).split(","):
        host, _, port = part.partition(":")
        try:
            socket.create_connection((host, int(port or _STANDALONE_PORT)), timeout=CONNECT_S).close()
        except (OSError, ValueError) as error:
            errors.append(f"{part}: {error}")
        else:
            return CheckState.OK, f"{address} answers"
    return CheckState.FAILED, f"the master {address} does not answer: {'; '.join(errors)}"


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _broken_modules() -> list[str]:
    """Return the modules of this package that cannot be imported, each with the error."""
    broken = []
    for module in walk_packages(lakehouse_airflow.__path__, "lakehouse_airflow."):
        is_page = module.name.startswith(_PAGES) and not PAGES.is_present
        if is_page or module.name.startswith(_COMPAT) or module.name.endswith("__main__"):
            continue
        try:
            import_module(module.name)
        except Exception as error:
            broken.append(f"{module.name}: {type(error).__name__}: {error}")
    return broken


def _memory(text: str) -> int | None:
    """Parse `spark.driver.memory`, such as `2g`, to bytes. Return None for an invalid value."""
    match = re.fullmatch(r"(\d+)([kmgt])b?", text.strip().lower())
    return int(match[1]) << _UNITS[match[2]] if match else None


def _gigabytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _slots(count: int) -> str:
    return "unlimited" if count < 0 else f"{count} slots"
