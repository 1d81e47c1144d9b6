"""Operator that runs one lakehouse job as one spark-submit.

The contract with the job is `JobCommand` (its arguments) and `JobReport` (a file that it writes).
Outcomes of a task try:

    committed                        success; the report is the XCom value, the asset event contains its instant
    nothing to do, with instant      success; the event for the commit of an earlier try, unless it exists
    nothing to do, without instant   success, or skipped with `skip_if_nothing_to_do`; no event, so that no DAG
                                     that waits for data starts
    error code `table_busy`          rescheduled, without using up a try, until the other run ends
    data is missing, `missing: wait` rescheduled until `wait_for` is over, then failed
    exit code of a final error       failed without retry: user, unsupported, corrupt table, commit state unknown
    any other exit code              failed, retried

Before the JVM starts, two checks run: of the command and its spec in this process, then of the table's metadata in a
process of Spark's environment (`--check`). An error in a check has the same outcome as an error of the job. The check
of an ingestion also looks for new data. If there is none, it writes the report and ends the run without Spark.

With a submission to a cluster (`lakehouse_airflow.submission`) the driver runs elsewhere, and the report decides: its
error sets the state of the task as above, and an application without a report fails the try.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from time import monotonic  # noqa: TID251 -- the duration of a check in the log
from typing import Any

from lakehouse.errors import UserError
from lakehouse.model.texts import text_list
from lakehouse.spec.command_check import check_command
from lakehouse.spec.contracts.job import (
    STORAGE_PREFIXES,
    STORAGE_SETTINGS,
    ErrorCode,
    JobReport,
    JobStatus,
    without_lineage,
)
from lakehouse.spec.contracts.job_text import report_text
from lakehouse.spec.job_command import REPLAY, IngestCommand, JobCommand, command_of
from lakehouse.spec.report_store import JobDocument, JobDocuments
from lakehouse.spec.reports_folder import REPORTS, is_folder, make_reports_folder, report_address, reports_folder
from lakehouse.spec.secrets import refuse_hosts
from lakehouse.spec.table.table_spec import load_spec
from lakehouse_airflow.compat import AirflowException, AirflowFailException, AirflowSkipException, BaseHook, Context
from lakehouse_airflow.data_intervals import IntervalMixin, data_interval
from lakehouse_airflow.forms import check_conf
from lakehouse_airflow.job_environment import (
    catalog_variables,
    connection_variables,
    driver_secrets,
    spec_references,
    spec_variables,
)
from lakehouse_airflow.job_reports import FINAL_EXIT_CODES, failed_task, read_report
from lakehouse_airflow.lineage import LineageMixin, lineage_variables
from lakehouse_airflow.processes import JOB, end_job
from lakehouse_airflow.refusals import noted_refusals
from lakehouse_airflow.rescheduling import reschedule, reschedule_for_data
from lakehouse_airflow.spark_environment import cluster_settings, provide_connection, spark_environment
from lakehouse_airflow.spark_submit import SparkJobOperator, SubmitCommand
from lakehouse_airflow.submission.choice import BY_SPARK_SUBMIT, choose
from lakehouse_airflow.submission.credentials import with_credentials
from lakehouse_airflow.submission.protocol import ApplicationState, ApplicationStatus, JobRequest, SubmissionChoice
from lakehouse_airflow.submission.tasks import (
    ClusterJob,
    SubmissionRecord,
    ended_without_report,
    for_cluster,
    new_token,
    retried,
    spec_text,
)
from lakehouse_airflow.submission.trigger import ApplicationLink, ApplicationTrigger, status_of, store_at
from lakehouse_airflow.table_events import TableEvents
from lakehouse_airflow.task_heartbeat import heartbeat, task_variables

#: Maximum number of output characters in the error of a failed check.
_SHOWN_OUTPUT = 2000
#: Documentation of a job in the UI; verb and action are filled in.
JOB_DOC = """Runs `lakehouse {verb} {action}` as one `spark-submit`.

* The settings and the table are checked before Spark starts. A wrong setting fails the task without a retry.
* The log ends with the report: rows, files, dropped and skipped data, warnings. XCom `return_value` contains it, too.
* The task is rescheduled, without using up a try, while another run works on the table or data has not arrived.
"""
_CONF = {"spark.log.level": "WARN", "spark.ui.showConsoleProgress": "false"}


class LakehouseOperator(LineageMixin, IntervalMixin, SparkJobOperator):
    """Run `lakehouse <verb> <action> --table <table>` in Spark's environment, and return its JobReport as a mapping.

    The run's params `interval_start`, `interval_end`, `full_refresh` and `options` override the arguments. With
    `replay` an ingestion parses dead letters again; `commit` or `dead_letters` (a folder) select some of them. The
    Spark installation comes from the environment (see `spark_environment`), the cluster from the Airflow connection
    `conn_id` or from `submission`. A driver on another host needs LAKEHOUSE_REPORTS in a store that both hosts reach.

    Args:
        verb: Noun of the command line, such as `ingest`.
        action: Verb of the command line, such as `run`.
        table: Table spec, location of a table, or its name in the catalog. Table services accept a list of names.
        by_interval: Pass the run's data interval to the job. DAG parsing fails if the schedule has empty intervals; a
            run without an interval fails.
        input: The name of the input to ingest if the spec has several inputs, otherwise empty.
        options: Options of this run only.
        skip_if_nothing_to_do: Skip the task and its downstream tasks if the job had nothing to do. By default it
            succeeds with the status `nothing_to_do`.
        check: Check the table before Spark starts. If False, only the command, its spec and the run's options are
            checked, which is enough if an earlier task of the run has opened the table.
        submission: Name of the submission, such as `yarn` or `emr`, or a mapping of its settings with `name`. By
            default the connection selects it (`lakehouse_airflow.submission.choice`).
        deferrable: Wait for the application on the cluster in the triggerer, without a worker slot. A job on the host
            of the task is not deferred.
        poll_s: Seconds between two polls of the application.
        lost_after_s: Seconds after which an application ends by itself if no try of its task follows it. A retry must
            start earlier, to reattach to it.
        kwargs: Arguments of SparkSubmitOperator.
    """

    outlets: list[Any]
    operator_extra_links = (ApplicationLink(),)

    template_fields: Sequence[str] = (*SparkJobOperator.template_fields, "table", "options")

    # parameters: the arguments of an Airflow operator
    def __init__(
        self,
        *,
        verb: str,
        action: str,
        table: str | Sequence[str],
        by_interval: bool = False,
        input: str = "",
        options: Mapping[str, str] | None = None,
        skip_if_nothing_to_do: bool = False,
        check: bool = True,
        submission: str | Mapping[str, Any] | None = None,
        deferrable: bool = False,
        poll_s: float = 10,
        lost_after_s: int = 3600,
        **kwargs: Any,
    ) -> None:
        kwargs["conf"] = {**_CONF, **(kwargs.get("conf") or {})}
        kwargs.setdefault("name", f"lakehouse {verb} {action}")
        kwargs.setdefault("doc_md", JOB_DOC.format(verb=verb, action=action))
        super().__init__(**kwargs)
        self.verb = verb
        self.action = action
        self.table = table
        self.by_interval = by_interval
        self.input = input
        self.options = dict(options or {})
        self.skip_if_nothing_to_do = skip_if_nothing_to_do
        self.check = check
        self.submission = submission
        self.deferrable = deferrable
        self.poll_s = poll_s
        self.lost_after_s = lost_after_s
        self.force = False
        self.application_link = ""
        # The script of checks on this host, if `application` is the script of a driver elsewhere.
        self._checker = ""
        self._running: tuple[ClusterJob, SubmissionRecord] | None = None
        self._job_id: str | None = None
        self._secrets: dict[str, str] = {}
        self._check_schedule(self._dag)

    def execute(self, context: Context) -> dict[str, Any]:
        """Submit the job, wait for its end, and set the state of the task by its report."""
        with noted_refusals(context):
            choice = self._choice()
        if choice is not None:
            return self._execute_on_cluster(context, choice)
        command = self._ready_command(context)
        store = self._store(command)
        ended = read_report(store)
        if ended is not None:
            # This report is from the check, which ended the run: reports of earlier tries are deleted before the check.
            self.log.info("The source has no new data, so Spark is not started.")
            return self._success(context, command, ended)
        try:
            with _environment(self._secrets), heartbeat(store.address):
                super().execute(context)
        except AirflowException as failure:
            report = read_report(store)
            if report is not None and report.error is not None:
                # The provider's exception contains the full command line of spark-submit, but no reason of the failure.
                raise self._failure(context, report) from None
            submit = self.submit_process
            is_final = submit is not None and submit.returncode in FINAL_EXIT_CODES
            raise AirflowFailException(str(failure)) if is_final else failure from None
        finally:
            # No process of this try continues after the task has ended.
            end_job(str(self._job_id))
            self.close_output()
        return self._success(context, command, read_report(store))

    def _ready_command(self, context: Context) -> JobCommand:
        """Set the fields of the Spark operator, check the command of the job, and return it."""
        with noted_refusals(context):
            check_conf(context)
            command = self._command(context)
            check_command(command, {**os.environ, **(self.env_vars or {})})
            self._prepare(command)
            if self._needs_check(command):
                self._run_check(context, command)
        return command

    def _execute_on_cluster(self, context: Context, choice: SubmissionChoice) -> dict[str, Any]:
        """Submit the job to a cluster, or reattach to the application of an earlier try, and wait for its end."""
        with noted_refusals(context), retried():
            check_conf(context)
            command = self._command(context)
            check_command(command, {**os.environ, **(self.env_vars or {})})
            job, started = self._start_on_cluster(context, command, choice)
        if isinstance(started, SubmissionRecord):
            self._running = job, started
            self._show(context, ApplicationStatus(state=ApplicationState.WAITING, link=started.running.link))
            if self.deferrable:
                self._defer(job, started)
            with retried():
                status = job.wait(started, self.poll_s, lambda status: self._show(context, status))
            return self._finish(context, command, job, ended_without_report(started.running, status))
        return self._accept(context, command, job, started)

    def _start_on_cluster(
        self, context: Context, command: JobCommand, choice: SubmissionChoice
    ) -> tuple[ClusterJob, SubmissionRecord | JobReport]:
        """Return the job with its running application, or with the report that ends the run."""
        if not os.environ.get(REPORTS):
            raise UserError(
                f"the driver runs on another host than its task: set {REPORTS} to a store that both reach, such as "
                "s3://bucket/reports, or catalog"
            )
        request = self._request(command, choice)
        job = ClusterJob(
            choice=choice, store=self._store(command), lost_after_s=self.lost_after_s, program=self._submit_program
        )
        attached = job.attach(tuple(request.arguments))
        if isinstance(attached, JobReport) or (attached is not None and attached.application is not None):
            return job, attached
        job.store.change({JobDocument.REPORT: None})
        if self._needs_check(command):
            self._run_check(context, command)
        ended = job.report()
        if ended is not None:
            self.log.info("The source has no new data, so Spark is not started.")
            return job, ended
        # The submit of an earlier try may have lost its reply. Clusters with idempotent submits detect its token.
        request = request if attached is None else replace(request, token=attached.token)
        # A task that is stopped during the submission ends the application by its token.
        self._running = job, job.record_of(request)
        with with_credentials(choice, request, self._secrets) as complete:
            return job, job.submit(complete, spec_text(command))

    def application_complete(
        self, context: Context, event: dict[str, Any], record: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Set the state of the task after its application has ended, which the trigger has waited for."""
        submitted, status, command = SubmissionRecord.from_mapping(record), status_of(event), self._command(context)
        job = ClusterJob(choice=submitted.choice, store=self._store(command), lost_after_s=self.lost_after_s)
        if status is None:
            raise AirflowException(f"{submitted.running.title} cannot be followed: {event['error']}")
        self._show(context, status)
        return self._finish(context, command, job, ended_without_report(submitted.running, status))

    def _finish(
        self, context: Context, command: JobCommand, job: ClusterJob, failure: AirflowException
    ) -> dict[str, Any]:
        """Set the state of the task by the report; raise `failure` if there is none."""
        with retried():
            report = job.report()
        if report is None:
            raise failure
        if report.error is not None:
            raise self._failure(context, report)
        return self._accept(context, command, job, report)

    def _accept(self, context: Context, command: JobCommand, job: ClusterJob, report: JobReport) -> dict[str, Any]:
        """Return the result of a success, after which no try needs the record of the submission."""
        try:
            result = self._success(context, command, report)
        except AirflowSkipException:
            job.close()
            raise
        with retried():
            job.close()
        return result

    def _defer(self, job: ClusterJob, record: SubmissionRecord) -> None:
        trigger = ApplicationTrigger(
            record=record.to_mapping(),
            address=job.store.address,
            storage=self._storage_settings,
            poll_s=self.poll_s,
            lost_after_s=self.lost_after_s,
        )
        self.defer(trigger=trigger, method_name="application_complete", kwargs={"record": record.to_mapping()})

    def _show(self, context: Context, status: ApplicationStatus) -> None:
        """Log a new status of the application, and link its page from the task."""
        places = [f"log of the driver: {status.log}" if status.log else "", status.link]
        self.log.info("%s", "; ".join(filter(None, (f"The application is {status.state}", status.reason, *places))))
        if status.link and status.link != self.application_link:
            self.application_link = status.link
            context["ti"].xcom_push(key=ApplicationLink.xcom_key, value=status.link)

    def _choice(self) -> SubmissionChoice | None:
        """Return the submission of the task, or None for spark-submit on this host."""
        connection = _connection(self.spark_connection)
        is_spark = connection is None or connection.conn_type in ("spark", "k8s", "yarn")
        is_cluster = connection is not None and is_spark and self.is_cluster
        return choose(self.submission, connection, is_cluster=is_cluster)

    def _request(self, command: JobCommand, choice: SubmissionChoice) -> JobRequest:
        """Return the job for the cluster, and set the environment of its check."""
        self._job_id = self._job_of(command)
        spark = spark_environment(os.environ)
        is_here = choice.name in BY_SPARK_SUBMIT
        given = {name: str(value) for name, value in (self.env_vars or {}).items()}
        own = {**lineage_variables(), **given}
        # The host's paths are those of the cluster's nodes only if spark-submit runs here.
        variables = {JOB: f"cluster/{self._job_id}", **(spark.variables if is_here else {}), **own}
        self.application = self.application or choice.setting("application") or spark.application
        application, self._checker = self.application, spark.application
        if not self.has_program:
            self.use_program(spark.binary)
        self.env_vars = {**spark.variables, **spec_variables(os.environ), **own}
        references = [*command.options.values(), *_declared_options(command.table)]
        self._secrets = driver_secrets(os.environ, references)
        if is_here:
            _refuse_kubernetes_without_provider(self.spark_connection)
        settings = cluster_settings(_connection(self.spark_connection), os.environ, is_cluster_mode=True)
        return JobRequest(
            name=str(self.name),
            token=new_token(),
            command=for_cluster(command),
            application=application,
            conf={**settings, **{key: str(value) for key, value in (self.conf or {}).items()}},
            variables=variables,
        )

    def _submit_program(self, request: JobRequest, conf: Mapping[str, str]) -> SubmitCommand:
        """Return the command line of spark-submit for a request, with additional Spark properties."""
        self.conf = {**request.conf, **conf}
        self.env_vars = dict(request.variables)
        self.application_args = request.arguments
        self.log.info("lakehouse %s", shlex.join(request.arguments))
        command = self.submit_command()
        return SubmitCommand(words=command.words, variables={**command.variables, **self._secrets})

    def on_kill(self) -> None:
        """End the application on the cluster, or all processes of the job on this host.

        Airflow's own operator only kills the JVM, and the driver would continue.
        """
        if self._running is not None:
            job, record = self._running
            # A spark-submit that still runs would submit the application later.
            end_job(f"cluster/{self._job_id}")
            job.kill(record)
            return
        if self._job_id is None:
            return
        submit = self.submit_process
        end_job(self._job_id, submit.pid if submit is not None else None)
        super().on_kill()

    def interval(self, context: Context) -> tuple[str, str] | None:
        """Return the data interval of the job, or None if it has none. A replay reads dead letters of all intervals."""
        if (context.get("params") or {}).get(REPLAY):
            return None
        return data_interval(context, by_interval=self.by_interval)

    def _command(self, context: Context) -> JobCommand:
        """Build the job's command from the rendered fields and the run. All tries of a run have the same run id."""
        instance, params = context["ti"], context.get("params") or {}
        interval = self.interval(context) or (None, None)
        tables = text_list(self.table, "table")
        if not tables:
            raise UserError(f"{self.task_id}: table is an empty list; give a table, or skip the task", argument="table")
        mapped = "" if instance.map_index in (None, -1) else f".{instance.map_index}"
        run_id = f"{instance.dag_id}/{instance.run_id}/{instance.task_id}{mapped}"
        report = report_address(os.environ, *map(folder_name, run_id.split("/")))
        options = params.get("options") or {}
        if not isinstance(options, Mapping):
            raise UserError(f"the run's params contain options={options!r}: expected a mapping of option to value")
        refuse_hosts(options, "the run's params")
        return command_of(
            self.verb,
            REPLAY if params.get(REPLAY) else self.action,
            table=tables[0],
            input=self.input or None,
            also=tables[1:],
            commit=_name(params, "commit"),
            dead_letters=_name(params, "dead_letters"),
            partitions=text_list(params.get("partitions"), "the run's params: partitions"),
            force=self.force or bool(params.get("force")),
            interval_start=interval[0],
            interval_end=interval[1],
            run_id=run_id,
            report=report,
            full_refresh=bool(params.get("full_refresh")),
            resnapshot=text_list(params.get("resnapshot"), "the run's params: resnapshot"),
            options={key: _text(value) for key, value in {**self.options, **options}.items()},
        )

    def _prepare(self, command: JobCommand) -> None:
        """Set the fields of the Spark operator, delete an old report, and end the processes of an earlier try."""
        store = self._store(command)
        with retried():
            store.change({JobDocument.REPORT: None})
        self._job_id = self._job_of(command)
        if end_job(self._job_id):
            self.log.warning("An earlier try of %s was still running here; it was ended.", self._job_id)
        variables = {JOB: self._job_id, **(task_variables(store.address) if self._ends_with_task(command) else {})}
        if not self.application or not self.has_program:
            spark = spark_environment(os.environ)
            self.application = self.application or spark.application
            if not self.has_program:
                self.use_program(spark.binary)
            variables |= spark.variables
        variables |= lineage_variables()
        self.env_vars = {**variables, **spec_variables(os.environ), **(self.env_vars or {})}
        references = [*command.options.values(), *_declared_options(command.table)]
        # Secrets are not in `env_vars`, because these become arguments of spark-submit on YARN and Kubernetes.
        self._secrets = {**catalog_variables(os.environ), **connection_variables(os.environ, references)}
        self.application_args = list(command.to_argv())
        if _connection(self.spark_connection) is None:
            provide_connection(self.spark_connection, os.environ)
        settings = cluster_settings(BaseHook.get_connection(self.spark_connection), os.environ, is_cluster_mode=False)
        self.conf = {**settings, **(self.conf or {})}
        _refuse_kubernetes_without_provider(self.spark_connection)
        self.log.info("lakehouse %s", shlex.join(self.application_args))

    def _store(self, command: JobCommand) -> JobDocuments:
        """Return the store of the job's documents. A folder is created for this user alone."""
        address = str(command.report)
        if is_folder(address):
            folder = Path(address).parent.relative_to(reports_folder(os.environ))
            make_reports_folder(os.environ, *folder.parts)
        return store_at(address, self._storage_settings)

    def _ends_with_task(self, command: JobCommand) -> bool:
        """Return whether the job must end when this task has ended."""
        del command
        return True

    def _job_of(self, command: JobCommand) -> str:
        """Return the id of the job, which is the same for all tries of a run."""
        return str(command.run_id)

    @property
    def _storage_settings(self) -> str:
        """Return the storage settings in `conf`, for commands that run without spark-submit."""
        settings = {key: str(value) for key, value in (self.conf or {}).items() if key.startswith(STORAGE_PREFIXES)}
        return json.dumps(settings)

    def _needs_check(self, command: JobCommand) -> bool:
        if self.properties_file or "PYSPARK_PYTHON" not in (self.env_vars or {}):
            # Only spark-submit can resolve these Spark properties or this Python, so no check runs here. The job runs
            # the same check.
            return False
        return self.check or bool(command.options)

    def _check_of(self, command: JobCommand) -> JobCommand:
        """Return the command of the check. The check of an ingestion ends the run if there is no new data."""
        if isinstance(command, IngestCommand):
            return replace(command, check=True, end_if_idle=True)
        return replace(command, check=True)

    def _run_check(self, context: Context, command: JobCommand) -> None:
        """Check the command in a process of Spark's environment. Raise the exception for its error."""
        variables = {**(self.env_vars or {}), **self._secrets, STORAGE_SETTINGS: self._storage_settings}
        started = monotonic()
        done = subprocess.run(
            [variables["PYSPARK_PYTHON"], self._checker or self.application, *self._check_of(command).to_argv()],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.log.info("Checked the command and the table in %.1f s, before Spark starts.", monotonic() - started)
        if done.returncode == 0:
            return
        outcome = read_report(self._store(command))
        if outcome is not None and outcome.error is not None:
            raise self._failure(context, outcome)
        # The check itself failed, for example because Spark's environment has an older version of lakehouse.
        reason = done.stdout.strip()[-_SHOWN_OUTPUT:] or "no output"
        message = f"the check before Spark starts ended with exit code {done.returncode}: {reason}"
        raise AirflowFailException(message) if done.returncode in FINAL_EXIT_CODES else AirflowException(message)

    def _success(self, context: Context, command: JobCommand, report: JobReport | None) -> dict[str, Any]:
        if report is None:
            raise AirflowException(f"the job ended with exit code 0, but left no report at {command.report}")
        if report.error is not None:
            raise failed_task(report, final=not report.error.retryable)
        self.job_reports = (report,)
        # The XCom value omits the lineage, which is sent to OpenLineage.
        result = without_lineage(report).to_mapping()
        self.log.info("%s", report_text(report))
        events = TableEvents(dag_id=context["ti"].dag_id, command=command, storage=self._storage_settings)
        has_events = events.emit(self, context, report)
        # A retry finds the commit of the earlier try, so the run did change the table.
        written = any(part.instant is not None for part in (report, *report.parts))
        if report.status is JobStatus.NOTHING_TO_DO and self.skip_if_nothing_to_do and not (written or has_events):
            # Airflow does not store the return value of a skipped task, so the report is stored here.
            context["ti"].xcom_push(key="return_value", value=result)
            raise AirflowSkipException(f"nothing to do for {command.table}: {report.reason or 'see the log'}")
        return result

    def _failure(self, context: Context, report: JobReport) -> AirflowException:
        """Return the exception for the error in a report. It is final if a retry cannot help."""
        error = report.error
        assert error is not None, "the report contains an error"
        if error.code is ErrorCode.TABLE_BUSY:
            return reschedule(context, error.message, self.execution_timeout)
        if error.wait_for_s is not None:
            return reschedule_for_data(context, error.message, timedelta(seconds=error.wait_for_s))
        if report.parts:
            self.log.error("%s", report_text(report))
        return failed_task(report, final=error.exit_code in FINAL_EXIT_CODES)


def _name(params: Mapping[str, Any], param: str) -> str | None:
    """Return the string in a param of the run, or None if it is empty."""
    value = params.get(param)
    if value is not None and not isinstance(value, str):
        raise UserError(f"the run's params contain {param}={value!r}: expected a string")
    return value or None


def folder_name(part: str) -> str:
    """Return a safe folder name for a part of a job's id. `..` is a legal run id."""
    return re.sub(r"[^\w.:+@-]|^\.+$", "_", part)


def _declared_options(table: str) -> list[str]:
    """Return the values of a table spec that may refer to connections. Other tables have none."""
    path = Path(table)
    return spec_references(load_spec(path)) if path.suffix in (".yaml", ".yml") and path.is_file() else []


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in a `with` block. Processes that start in it inherit them."""
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


def _connection(connection_id: str) -> Any:
    """Return an Airflow connection, or None if it does not exist."""
    try:
        return BaseHook.get_connection(connection_id)
    except AirflowException:
        return None


def _refuse_kubernetes_without_provider(connection_id: str) -> None:
    """Raise UserError if the master is Kubernetes and its client is missing.

    Spark's provider would raise a NameError.
    """
    host = BaseHook.get_connection(connection_id).host or ""
    if host.startswith("k8s") and find_spec("airflow.providers.cncf") is None:
        raise UserError(
            f"the connection {connection_id!r} has the master {host}, which needs the package "
            "apache-airflow-providers-cncf-kubernetes in Airflow's environment",
            connection=connection_id,
        )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
