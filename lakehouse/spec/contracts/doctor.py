"""The report of `lakehouse doctor`, and the descriptions of its checks.

`CHECKS` is the registry of descriptions: help, documentation and pages are derived from it. The functions of the checks
are registered under the same names: for Spark's environment in `lakehouse.platform.doctor.examine`, for Airflow's
environment in `lakehouse_airflow.doctor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lakehouse.spec.contracts.document import Document


class CheckState(StrEnum):
    """Result of a check."""

    #: The deployment meets the condition of the check.
    OK = "ok"
    #: Works now, but with a limit that the message describes.
    WARNING = "warning"
    #: Something that the deployment needs is missing; `advice` is the solution.
    FAILED = "failed"
    #: The deployment does not use it.
    SKIPPED = "skipped"


class CheckedEnvironment(StrEnum):
    """The Python environment in which a check runs."""

    #: The environment of Airflow, with its provider and without pyspark.
    AIRFLOW = "airflow"
    #: The environment in which jobs run, with pyspark.
    SPARK = "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckDescription:
    """The description of a check.

    Attributes:
        name: Name of the check.
        environment: The environment in which it runs.
        meaning: The condition that must hold, and why.
        advice: The solution if it does not hold.
    """

    name: str
    environment: CheckedEnvironment
    meaning: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check: its observation, and the advice, which is empty if no action is needed."""

    name: str
    environment: CheckedEnvironment
    state: CheckState
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport(Document):
    """Result of `lakehouse doctor`. The versions describe the environment that wrote the report."""

    lakehouse_version: str
    python_version: str
    checks: tuple[CheckResult, ...] = ()

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The failed checks."""
        return tuple(check for check in self.checks if check.state is CheckState.FAILED)


def _airflow(name: str, meaning: str, advice: str) -> CheckDescription:
    return CheckDescription(name=name, environment=CheckedEnvironment.AIRFLOW, meaning=meaning, advice=advice)


def _spark(name: str, meaning: str, advice: str) -> CheckDescription:
    return CheckDescription(name=name, environment=CheckedEnvironment.SPARK, meaning=meaning, advice=advice)


#: Descriptions of all checks by name, in the order in which the checks run.
CHECKS: dict[str, CheckDescription] = {
    check.name: check
    for check in (
        _airflow(
            "airflow",
            "Airflow has a supported version, its Spark provider is installed, and pyspark is not: the provider's "
            "package pyspark-client overwrites files of pyspark.",
            "Install lakehouse-tables[airflow] in Airflow's environment, and lakehouse-tables[spark] in another one.",
        ),
        _airflow(
            "plugin",
            "Airflow knows the plugin and the provider of lakehouse, which are entry points of the package or files of "
            "the plugins folder. The plugin's listener detects missing pools; the provider adds `airflow lakehouse`.",
            "Install lakehouse-tables in Airflow's environment, and restart scheduler and API server.",
        ),
        _airflow(
            "pools",
            "Every pool of the DAGs exists and has slots. Airflow never starts a task whose pool is missing.",
            "Run `airflow lakehouse setup` where Airflow runs; for a pool with 0 slots, `airflow pools set`.",
        ),
        _airflow(
            "spark_connection",
            "The connection spark_default exists and names a master that answers. Without it Spark's provider would "
            "submit to YARN.",
            "Create the connection spark_default with conn_type spark, or set LAKEHOUSE_SPARK_MASTER=local[2].",
        ),
        _airflow(
            "spark_home",
            "LAKEHOUSE_SPARK_HOME is the virtual environment with lakehouse-tables[spark], in which jobs run.",
            "Set LAKEHOUSE_SPARK_HOME for scheduler and workers to the folder that contains bin/spark-submit.",
        ),
        _airflow(
            "versions",
            "lakehouse has the same version in Airflow's and in Spark's environment, because they exchange documents.",
            "Install the same wheel in both environments.",
        ),
        _airflow(
            "driver_memory",
            "The drivers of all slots of the Spark pools fit into the memory of this host, where drivers run.",
            "Lower the slots of lakehouse_ingest and lakehouse_services, or spark.driver.memory.",
        ),
        _airflow(
            "scheduler",
            "A scheduler and a DAG processor run. Without them no run begins, and new or changed specs get no DAG.",
            "Start `airflow scheduler` and `airflow dag-processor`, and read their logs.",
        ),
        _airflow(
            "executor",
            "The executor has slots, and its workers take tasks.",
            "Set [core] parallelism to 1 or more, start workers of the executor, and give default_pool slots with "
            "`airflow pools set`.",
        ),
        _airflow(
            "triggerer",
            "A triggerer runs if a spec has `stream: {watch: deferred}`. Without it such a task stays deferred.",
            "Start `airflow triggerer`, or set `watch: blocking` in the specs.",
        ),
        _airflow(
            "paused_dags",
            "No DAG of lakehouse is paused, and each begins runs by its schedule. While services.schedule is paused, "
            "no table service runs, tables have no health, and no alarm is sent.",
            "Run `airflow dags unpause` for the DAGs that should run; paused= of lakehouse_dags and "
            "LAKEHOUSE_DAGS_PAUSED decide about new DAGs. For a DAG without new runs, see the check scheduler.",
        ),
        _airflow(
            "time_zone",
            "Airflow's time zone ([core] default_timezone) is the time zone of all data intervals. Airflow reads "
            "dates without an offset in this zone, so a backfill may lack its last day if they differ.",
            "Write dates with an offset: `airflow backfill create --from-date 2026-03-01T00:00:00+00:00`.",
        ),
        _spark("python", "Python is 3.11 or newer.", "Create the environment with python3.11 or newer."),
        _spark(
            "packages",
            "The packages of the extra `spark` are installed.",
            "Install lakehouse-tables[spark] in this environment.",
        ),
        _spark(
            "pyspark",
            "pyspark has a supported version, and no other package has overwritten its files (pyspark-client does).",
            "Uninstall pyspark-client and pyspark, then install lakehouse-tables[spark] again.",
        ),
        _spark(
            "spark_jars",
            "The JVM's Spark has the minor version of pyspark; otherwise Python functions fail with unclear errors.",
            "Unset SPARK_HOME to use pyspark's own Spark, or install the pyspark of the cluster's version.",
        ),
        _spark("java", "Java 17 or newer is found by JAVA_HOME or on PATH.", "Install a JRE 17 and set JAVA_HOME."),
        _spark(
            "reports",
            "The folder of job reports exists, belongs to this user, and is closed to others.",
            "Run `airflow lakehouse setup` as the user of the tasks, or set LAKEHOUSE_REPORTS to its folder.",
        ),
        _spark(
            "specs",
            "All table specs are valid. A wrong spec has no DAG.",
            "Correct the files that are named; `lakehouse table drift` compares them with the catalog.",
        ),
        _spark(
            "modules",
            "The folders of LAKEHOUSE_MODULES exist, and functions that specs name, such as mergers, are found.",
            "Put the module into the DAGs folder or into a folder of LAKEHOUSE_MODULES.",
        ),
        _spark(
            "catalog",
            "The database of the catalog answers.",
            "Set LAKEHOUSE_CATALOG or the connection lakehouse_catalog, start the database, and check user and host.",
        ),
        _spark(
            "migrations",
            "The schema of the catalog has the version that this lakehouse needs.",
            "Run `lakehouse catalog upgrade` in Spark's environment.",
        ),
        _spark(
            "database_clock",
            "The clocks of this host and of the catalog's database differ by less than leases tolerate.",
            "Synchronise the clocks (NTP).",
        ),
        _spark(
            "metastore",
            "Each Hive Metastore that a spec or LAKEHOUSE_METASTORE names answers.",
            "Start the metastore, correct its address, and install lakehouse-tables[hive].",
        ),
        _spark(
            "storage",
            "The storage of each table can be written, and refuses to create a file twice (conditional put): commits "
            "depend on it. The check writes one temporary file in each storage and deletes it.",
            "Correct credentials and rights; use a store with conditional puts (If-None-Match).",
        ),
        _spark(
            "connectors",
            "Spark has Hadoop's connectors for the object stores of all tables; without them Python workers read.",
            "Start Spark with the named package (`--packages`), or add its jars to Spark.",
        ),
        _spark(
            "storage_clock",
            "The clocks of this host and of each object store differ by less than leases tolerate.",
            "Synchronise the clocks (NTP).",
        ),
        _spark(
            "lock_clients",
            "The client of each lock provider that specs name is installed, such as kazoo for zookeeper.",
            "Install the extra that is named, such as lakehouse-tables[zookeeper].",
        ),
    )
}


def checks_markdown() -> str:
    """Return the table of all checks for the documentation."""
    rows = ["| check | runs in | what must hold | what to do |", "| --- | --- | --- | --- |"]
    rows += [f"| `{c.name}` | {c.environment.value} | {c.meaning} | {c.advice} |" for c in CHECKS.values()]
    return "\n".join(rows)
