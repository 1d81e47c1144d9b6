"""Operator that runs one lakehouse job as one spark-submit.

The contract with the job is `JobCommand` (its arguments) and `JobReport` (a file that it writes).
Outcomes of a try:

    committed                        success; the report is the XCom value, its instant is in the table's asset event
    nothing to do, with instant      success with the same event: an earlier try of this run made the commit
    nothing to do, without instant   success without an event, so that no DAG waiting for data starts; skipped with
                                     `skip_if_nothing_to_do`
    error code `table_busy`          rescheduled without using a try, until the other run ends
    data is missing, `missing: wait` rescheduled until `wait_for` is over, then failed
    exit code of a final error       failed without retry: user, unsupported, corrupt table, commit state unknown
    any other exit code              failed, retried
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, BaseHook, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from lakehouse.errors import CommitStateUnknownError, CorruptTableError, UnsupportedError, UserError
from lakehouse.model.texts import text_list
from lakehouse.spec.contracts.job import ErrorCode, JobCommand, JobReport, JobStatus
from lakehouse.spec.contracts.table_event import TableEvent
from lakehouse.spec.private_files import read_own_file
from lakehouse.spec.reports_folder import make_reports_folder, reports_folder
from lakehouse.spec.table import load_spec
from lakehouse_airflow.assets import drop_events
from lakehouse_airflow.data_intervals import IntervalMixin, data_interval
from lakehouse_airflow.job_environment import catalog_variables, connection_variables, spec_variables
from lakehouse_airflow.processes import JOB, end_job
from lakehouse_airflow.rescheduling import reschedule, reschedule_for_data
from lakehouse_airflow.spark_environment import provide_connection, spark_environment

#: A retry cannot help after these.
FINAL_EXIT_CODES = frozenset(
    error.exit_code for error in (UserError, UnsupportedError, CorruptTableError, CommitStateUnknownError)
)
_CONF = {"spark.log.level": "WARN", "spark.ui.showConsoleProgress": "false"}


class LakehouseOperator(IntervalMixin, SparkSubmitOperator):
    """Run `lakehouse <verb> <action> --table <table>` in Spark's environment; return its JobReport as a mapping.

    The run's params `interval_start`, `interval_end`, `full_refresh` and `options` replace the arguments. The Spark
    installation comes from the environment (see `spark_environment`), the master from the Airflow connection `conn_id`.
    The report is a local file, so the driver must run where the task runs: client mode.

    Args:
        verb: Noun of the command line, such as `ingest`.
        action: Verb of the command line, such as `run`.
        table: Table spec, location of a table, or its name in the catalog. Table services accept a list of names.
        by_interval: The job gets the run's data interval. Parsing the DAG fails for a schedule with empty intervals; a
            run without an interval fails.
        options: Options of this run only.
        skip_if_nothing_to_do: Skip the task, and those that follow it, if the job had nothing to do. By default it
            succeeds with the status `nothing_to_do`.
        kwargs: Arguments of SparkSubmitOperator.
    """

    # Fields of the Spark operator that are set while the task runs.
    application: str
    application_args: list[str] | None
    env_vars: dict[str, Any] | None
    outlets: list[Any]
    _spark_binary: str | None

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "table", "options")

    # parameters: the arguments of an Airflow operator
    def __init__(
        self,
        *,
        verb: str,
        action: str,
        table: str | Sequence[str],
        by_interval: bool = False,
        options: Mapping[str, str] | None = None,
        skip_if_nothing_to_do: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs["conf"] = {**_CONF, **(kwargs.get("conf") or {})}
        kwargs.setdefault("name", f"lakehouse {verb} {action}")
        super().__init__(**kwargs)
        self.verb = verb
        self.action = action
        self.table = table
        self.by_interval = by_interval
        self.options = dict(options or {})
        self.skip_if_nothing_to_do = skip_if_nothing_to_do
        self.force = False
        self._job_id: str | None = None
        self._secrets: dict[str, str] = {}
        self._check_schedule(self._dag)

    def execute(self, context: Context) -> dict[str, Any]:
        """Submit the job, wait for its end, and derive the state of the task from its report."""
        try:
            command = self._command(context)
            self._prepare(command)
        except UserError as error:
            raise AirflowFailException(str(error)) from error
        report_path = Path(str(command.report))
        try:
            with _environment(self._secrets):
                super().execute(context)
        except AirflowException as failure:
            raise self._failure(context, failure, _read_report(report_path)) from failure
        finally:
            # No process of this try continues after the task has ended.
            end_job(str(self._job_id))
            submit = self._submit()
            if submit is not None and submit.stdout is not None:
                submit.stdout.close()
        return self._success(context, command, _read_report(report_path), report_path)

    def on_kill(self) -> None:
        """End all processes of the job. Airflow's own operator kills the JVM only, and the driver continues."""
        if self._job_id is None:
            return
        submit = self._submit()
        end_job(self._job_id, submit.pid if submit is not None else None)
        if self._hook is not None:
            super().on_kill()

    def _submit(self) -> Popen[str] | None:
        """Return the process of spark-submit, None before its start."""
        submit: Popen[str] | None = self._hook._submit_sp if self._hook is not None else None
        return submit

    def interval(self, context: Context) -> tuple[str, str] | None:
        """Return the data interval of the job, None for none."""
        return data_interval(context, by_interval=self.by_interval)

    def _command(self, context: Context) -> JobCommand:
        """Build the job's command from the rendered fields and the run. Every try of a run has the same run id."""
        instance, params = context["ti"], context.get("params") or {}
        interval = self.interval(context) or (None, None)
        tables = text_list(self.table, "table")
        if not tables:
            raise UserError(
                f"{self.task_id}: table is an empty list; name the table, or skip the task", argument="table"
            )
        mapped = "" if instance.map_index in (None, -1) else f".{instance.map_index}"
        run_id = f"{instance.dag_id}/{instance.run_id}/{instance.task_id}{mapped}"
        report = reports_folder(os.environ) / Path(*map(_folder_name, run_id.split("/"))) / "report.json"
        options = params.get("options") or {}
        if not isinstance(options, Mapping):
            raise UserError(f"the run's params give options={options!r}: expected a mapping of option to value")
        return JobCommand(
            verb=self.verb,
            action=self.action,
            table=tables[0],
            also=tables[1:],
            partitions=text_list(params.get("partitions"), "the run's params: partitions"),
            force=self.force or bool(params.get("force")),
            interval_start=interval[0],
            interval_end=interval[1],
            run_id=run_id,
            report=str(report),
            full_refresh=bool(params.get("full_refresh")),
            options={key: _text(value) for key, value in {**self.options, **options}.items()},
        )

    def _prepare(self, command: JobCommand) -> None:
        """Set the fields of the Spark operator, delete an old report, and end processes of an earlier try."""
        report = Path(str(command.report))
        make_reports_folder(os.environ, *report.parent.relative_to(reports_folder(os.environ)).parts)
        report.unlink(missing_ok=True)
        self._job_id = str(command.run_id)
        if end_job(self._job_id):
            self.log.warning("An earlier try of %s was still running here; it was ended.", self._job_id)
        variables = {JOB: self._job_id}
        if not self.application or not self._spark_binary:
            spark = spark_environment(os.environ)
            self.application = self.application or spark.application
            self._spark_binary = self._spark_binary or spark.binary
            variables |= spark.variables
        self.env_vars = {**variables, **spec_variables(os.environ), **(self.env_vars or {})}
        references = [*command.options.values(), *_declared_options(command.table)]
        # Secrets are not in `env_vars`, because these become arguments of spark-submit on YARN and Kubernetes.
        self._secrets = {**catalog_variables(os.environ), **connection_variables(os.environ, references)}
        self.application_args = list(command.to_argv())
        if not _has_connection(self._conn_id):
            provide_connection(self._conn_id, os.environ)
        _refuse_kubernetes_without_provider(self._conn_id)
        self.log.info("Job %s: %s", self._job_id, " ".join(self.application_args))

    def _success(self, context: Context, command: JobCommand, report: JobReport | None, path: Path) -> dict[str, Any]:
        if report is None:
            raise AirflowException(f"the job ended with exit code 0, but left no report at {path}")
        if report.error is not None:
            raise _failed(report, final=not report.error.retryable)
        result = report.to_mapping()
        self.log.info("Report: %s", report.to_json())
        if report.status is JobStatus.NOTHING_TO_DO and report.instant is None:
            if self.skip_if_nothing_to_do:
                # Airflow stores no return value of a skipped task.
                context["ti"].xcom_push(key="return_value", value=result)
                raise AirflowSkipException(f"nothing to do for {command.table}: {report.reason or 'see the log'}")
            drop_events(self)
            return result
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra = TableEvent.of(command, report).to_mapping()
        return result

    def _failure(self, context: Context, failure: AirflowException, report: JobReport | None) -> AirflowException:
        """Return the exception to raise: the error of the report, if there is one; final if a retry cannot help."""
        submit = self._submit()
        final = submit is not None and submit.returncode in FINAL_EXIT_CODES
        if report is not None and report.error is not None:
            if report.error.code is ErrorCode.TABLE_BUSY:
                return reschedule(context, report.error.message, self.execution_timeout)
            if report.error.wait_for_s is not None:
                return reschedule_for_data(context, report.error.message, timedelta(seconds=report.error.wait_for_s))
            self.log.error("%s: %s", report.error.kind, report.error.message)
            return _failed(report, final=final)
        return AirflowFailException(str(failure)) if final else failure


def _failed(report: JobReport, *, final: bool) -> AirflowException:
    assert report.error is not None, "only a report with an error is a failure"
    message = f"{report.error.kind}: {report.error.message}"
    return AirflowFailException(message) if final else AirflowException(message)


def _read_report(path: Path) -> JobReport | None:
    try:
        return JobReport.from_json(read_own_file(path))
    except FileNotFoundError:
        return None
    except UserError as error:
        raise AirflowException(f"{path}: {error}") from error


def _folder_name(part: str) -> str:
    """Return a folder name for a part of a job's id. `..` is a legal id of a run."""
    return re.sub(r"[^\w.:+@-]|^\.+$", "_", part)


def _declared_options(table: str) -> list[str]:
    """Return the values of the options in a table spec; an empty list if `table` is not a spec."""
    path = Path(table)
    return [*load_spec(path).options.values()] if path.suffix in (".yaml", ".yml") and path.is_file() else []


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in a block; processes that it starts inherit them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _has_connection(connection_id: str) -> bool:
    try:
        BaseHook.get_connection(connection_id)
    except AirflowException:
        return False
    return True


def _refuse_kubernetes_without_provider(connection_id: str) -> None:
    """Raise UserError for a master on Kubernetes without the client; Spark's provider would raise a NameError."""
    host = BaseHook.get_connection(connection_id).host or ""
    if host.startswith("k8s") and find_spec("airflow.providers.cncf") is None:
        raise UserError(
            f"the connection {connection_id!r} names the master {host}, which needs the package "
            "apache-airflow-providers-cncf-kubernetes in Airflow's environment",
            connection=connection_id,
        )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
