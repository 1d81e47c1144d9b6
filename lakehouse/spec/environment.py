"""The environment variables of the product: name, meaning, default, and the process that reads each.

A test compares this list with the names in the code, in docker-compose.yml and in the Makefile. A name with `<...>`
stands for a family of variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: Processes that read variables.
SHELL = "shell and jobs"
JOB = "jobs"
AIRFLOW = "Airflow"
COMPOSE = "docker compose"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentVariable:
    """One environment variable.

    Attributes:
        name: Its name; `<...>` is a placeholder.
        text: Sentence that describes the setting.
        default: Behaviour if it is not set.
        reader: The process that reads it: SHELL, JOB, AIRFLOW or COMPOSE.
    """

    name: str
    text: str
    default: str = ""
    reader: str = SHELL

    def covers(self, name: str) -> bool:
        """Return whether the name belongs to this variable or its family."""
        prefix, placeholder, _ = self.name.partition("<")
        return name == self.name or (bool(placeholder) and name.startswith(prefix))


ENVIRONMENT = (
    EnvironmentVariable(
        name="LAKEHOUSE_HOME",
        text="Folder below which relative locations and paths of table specs are, and the default catalog.",
        default="the current directory, and no catalog",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_CATALOG",
        text="URL of the default catalog, such as `postgresql+psycopg://user:password@host/lakehouse`.",
        default="SQLite in `LAKEHOUSE_HOME/catalog.db`",
    ),
    EnvironmentVariable(name="LAKEHOUSE_CATALOG_<NAME>", text="URL of the catalog NAME."),
    EnvironmentVariable(
        name="LAKEHOUSE_API",
        text="URL of Airflow. If set, commands about the catalog call its REST API instead of the database.",
        default="the database of the catalog",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_API_TOKEN",
        text="Token of an Airflow user for `LAKEHOUSE_API`; also `file:/path` of a file with the token.",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_METASTORE",
        text="Hive Metastore of publications and syncs that name none: `thrift://host:port`, several comma separated.",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_SPECS",
        text="Folders of table specs, separated by colons.",
        default="`tables` next to the DAG files; none in a shell",
        reader="shell and Airflow",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_DAGS_PAUSED",
        text="DAGs that start paused when Airflow sees them for the first time: `true`, `false`, or ids and patterns, "
        "comma separated. `!` excepts a DAG, such as `*, !services.schedule`.",
        default="as Airflow creates DAGs",
        reader=AIRFLOW,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_ALARMS",
        text="File with rules and notifiers of alarms, which changes the shipped rules.",
        default="`alarms.yaml` next to the folder of table specs, if it exists",
        reader="shell and Airflow",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_SYNC_SPECS",
        text="Folders of the specs that a job registers in the catalog before it runs; the operator sets it.",
        reader=JOB,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_AUTHOR",
        text="Author of changes in the catalog.",
        default="user and host; in Airflow the user that triggered the run, or the owner of the task",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_ALLOWED_FUNCTIONS",
        text="Mergers of tables and classes of custom sources of specs that are allowed: `package.module:function`, or "
        "`package.*`, comma separated.",
        default="mergers that the spec or the caller names",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_ALLOWED_SQL",
        text="Features that SQL in specs may use: `reflect`, `script`, `files` and `variables`, comma separated.",
        default="none",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_MODULES",
        text="Folders of the modules with mergers and sources, separated by colons.",
        default="the folder of the DAGs",
        reader="jobs and Airflow",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_STORAGE_FSYNC",
        text="Whether local files are flushed to the disk before a commit: `true` or `false`.",
        default="true if `LAKEHOUSE_HOME` is set, else false",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_REPORTS",
        text="Place of the reports that jobs write and operators read: a folder, a URL such as `s3://bucket/reports`, "
        "or `catalog`. Drivers on other hosts must reach it.",
        default="a folder of the user below the temporary directory",
        reader=AIRFLOW,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_SPARK_HOME",
        text="Virtual environment with `lakehouse-tables[spark]`, in which Airflow starts jobs.",
        default="none: tasks fail",
        reader=AIRFLOW,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_SPARK_MASTER",
        text="Spark master of jobs if the Spark connection does not exist, such as `local[2]`.",
        reader=AIRFLOW,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_CONNECTIONS",
        text="Ids of the Airflow connections that every job receives, comma separated.",
        reader=AIRFLOW,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_STORAGE_CONNECTIONS",
        text="Ids of Airflow connections with the credentials of storages, comma separated. Types are `aws`, "
        "`google_cloud_platform`, `wasb`, `adls`, `azure_data_lake`, `hdfs` and `webhdfs`.",
        default="the credentials in the environment or on the hosts",
        reader=AIRFLOW,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_SPARK_ARCHIVE",
        text="Archive of Spark's environment, which executors unpack: the path or URL of a file "
        "that `lakehouse environment pack` writes.",
        default="executors run the path of the driver's Python",
        reader=AIRFLOW,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_SPARK_SUBMIT",
        text="The `spark-submit` of the cluster's own Spark.",
        default="`$SPARK_HOME/bin/spark-submit` if SPARK_HOME is set, otherwise that of pyspark",
        reader=AIRFLOW,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_CREDENTIALS",
        text="File with the secrets of a job in the working directory of a driver on YARN. The operator sets it.",
        reader=JOB,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_JOB",
        text="Name of the job in its process. The operator sets it, and finds by it the processes to stop.",
        reader=AIRFLOW,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_TASK",
        text="Processes of the task of a job. The operator sets it, and the job ends with them.",
        reader=AIRFLOW,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_STORAGE_SETTINGS",
        text="Settings `spark.hadoop.fs.*` of a job as JSON. The operator sets it for the check before Spark starts.",
        reader=JOB,
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_INGEST_SLOTS",
        text="Slots of the pool of ingestion when `airflow lakehouse setup` creates it.",
        default="2",
        reader="Airflow and docker compose",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_SERVICE_SLOTS",
        text="Slots of the pool of table services when `airflow lakehouse setup` creates it.",
        default="2",
        reader="Airflow and docker compose",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_PUBLISH_SLOTS",
        text="Slots of the pool of publication when `airflow lakehouse setup` creates it.",
        default="4",
        reader="Airflow and docker compose",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_SCHEDULER_SLOTS",
        text="Slots of the pool of decisions and messages when `airflow lakehouse setup` creates it.",
        default="2",
        reader="Airflow and docker compose",
    ),
    EnvironmentVariable(
        name="LAKEHOUSE_LINEAGE",
        text="Whether jobs add their lineage to the report: `true` or `false`; the operator sets it for OpenLineage.",
        default="false",
        reader=JOB,
    ),
    EnvironmentVariable(
        name="AIRFLOW_CONN_<CONNECTION_ID>",
        text="An Airflow connection, for options with a value of the form `airflow:<connection id>`.",
        reader="jobs and Airflow",
    ),
    EnvironmentVariable(
        name="OTEL_EXPORTER_OTLP_ENDPOINT",
        text="OpenTelemetry collector that receives metrics, such as `http://collector:4318`.",
        default="no metric is measured or sent",
        reader=JOB,
    ),
    EnvironmentVariable(
        name="OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        text="The same, for metrics only and with its path.",
        reader=JOB,
    ),
    EnvironmentVariable(
        name="OTEL_METRIC_EXPORT_INTERVAL",
        text="Milliseconds between two exports of a long job; OpenTelemetry reads it, as all other `OTEL_*` names.",
        default="60000",
        reader=JOB,
    ),
    EnvironmentVariable(
        name="AWS_ACCESS_KEY_ID",
        text="Key of S3, if no option names one. All `AWS_*`, `GOOGLE_*` and `AZURE_*` names of obstore are read.",
    ),
    EnvironmentVariable(name="AWS_SECRET_ACCESS_KEY", text="Secret of the key."),
    EnvironmentVariable(name="AWS_SESSION_TOKEN", text="Token of temporary credentials."),
    EnvironmentVariable(name="AWS_ENDPOINT_URL", text="Address of another store with the protocol of S3."),
    EnvironmentVariable(name="AWS_ENDPOINT_URL_S3", text="The same, for S3 only."),
    EnvironmentVariable(name="AWS_ENDPOINT_URL_GLUE", text="Address of AWS Glue."),
    EnvironmentVariable(name="AWS_REGION", text="Region of the bucket, and of AWS Glue."),
    EnvironmentVariable(name="AWS_DEFAULT_REGION", text="Region of the bucket, if `AWS_REGION` is not set."),
    EnvironmentVariable(
        name="AWS_ALLOW_HTTP", text="Whether an address without TLS is accepted: `true` or `false`.", default="false"
    ),
    EnvironmentVariable(
        name="AWS_CONDITIONAL_PUT",
        text="`disabled` for a store without conditional puts, `etag` for OSS, COS and OBS if they have them.",
        default="etag",
    ),
    EnvironmentVariable(
        name="AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
        text="Whether the bucket is a part of the host name: `true` or `false`.",
        default="false",
    ),
    EnvironmentVariable(
        name="_LAKEHOUSE_COMPLETE",
        text="Set by the shell while it completes a command; `lakehouse completion` prints the script.",
        reader="shell",
    ),
    *(
        EnvironmentVariable(name=f"LAKEHOUSE_{name}", text=text, default=default, reader=COMPOSE)
        for name, text, default in (
            ("JWT_SECRET", "Signs the tokens of tasks.", ""),
            ("API_SECRET", "Signs the sessions of users.", ""),
            ("FERNET_SECRET", "Encrypts connections in Airflow's database.", ""),
            ("DB_PASSWORD", "Password of PostgreSQL, which has Airflow's tables and the catalog.", ""),
            ("METASTORE_PASSWORD", "Password of the metastore's database in PostgreSQL.", ""),
            ("GRAFANA_PASSWORD", "Password of the first user of Grafana.", ""),
            ("BIND", "Address on which ports are published.", "127.0.0.1"),
            ("GRAFANA_PORT", "Port of Grafana.", "3000"),
            ("S3_USER", "Key of the S3 store.", "lakehouse"),
            ("S3_PASSWORD", "Secret of the S3 store, at least eight characters.", ""),
            ("S3_PORT", "Port of the S3 store.", "9000"),
            ("S3_CONSOLE_PORT", "Port of the store's pages.", "9001"),
            ("USER", "First user of Airflow's pages.", "admin"),
            ("PASSWORD", "Password of that user.", ""),
            ("PORT", "Port of Airflow's pages.", "8080"),
            ("SPARK_PORT", "Port of Spark's pages.", "8081"),
            ("PROMETHEUS_PORT", "Port of Prometheus.", "9090"),
            ("PARALLELISM", "Airflow tasks that run at the same time.", "4"),
            ("WORKER_CORES", "Cores of the Spark worker.", "2"),
            ("WORKER_MEMORY", "Memory of the Spark worker.", "4g"),
        )
    ),
)


def undeclared(names: frozenset[str]) -> Iterator[str]:
    """Yield the undeclared names, sorted."""
    for name in sorted(names):
        if not any(variable.covers(name) for variable in ENVIRONMENT):
            yield name
