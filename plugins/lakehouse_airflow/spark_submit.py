"""Adapter to the operator of Spark's provider. Only this module uses private names of the provider.

`SparkSubmitOperator` can run an application and end it. It has no public name for three things that jobs need: the
program to run, which is only known on the host of the task; the process that it started; and its command line, which
starts a stream in a process that outlives the task. A test runs this module with the oldest and the newest release of
the provider that pyproject.toml allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from subprocess import Popen
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from lakehouse_airflow.compat import BaseHook

CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitCommand:
    """The command line of spark-submit, and the environment variables that it needs."""

    words: tuple[str, ...]
    variables: Mapping[str, str]


class SparkJobOperator(SparkSubmitOperator):
    """SparkSubmitOperator with a program that can be set while the task runs, and with access to its process.

    Args:
        conn_id: The Airflow connection with the master.
        spark_binary: Path or name of spark-submit. None means that `use_program` sets it or that it is on the PATH.
        deploy_mode: "client" or "cluster". None means the deploy mode of the connection.
        kwargs: Arguments of SparkSubmitOperator.
    """

    # Private fields of the provider's operator that this class sets while the task runs.
    application: str
    application_args: list[str] | None
    conf: dict[Any, Any] | None
    env_vars: dict[str, Any] | None
    _spark_binary: str | None

    def __init__(
        self,
        *,
        conn_id: str = "spark_default",
        spark_binary: str | None = None,
        deploy_mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(conn_id=conn_id, spark_binary=spark_binary, deploy_mode=deploy_mode, **kwargs)
        self.spark_connection = conn_id
        self._given_deploy_mode = deploy_mode

    @property
    def has_program(self) -> bool:
        """Return whether the program to run is set."""
        return bool(self._spark_binary)

    def use_program(self, path: str) -> None:
        """Run the spark-submit at this path."""
        self._spark_binary = path

    @property
    def is_cluster(self) -> bool:
        """Return whether the driver runs on the cluster instead of this host."""
        connection = BaseHook.get_connection(self.spark_connection)
        return bool((self._given_deploy_mode or connection.extra_dejson.get("deploy-mode")) == CLUSTER)

    @property
    def submit_process(self) -> Popen[str] | None:
        """The process of spark-submit, or None before it starts."""
        process: Popen[str] | None = self._hook._submit_sp if self._hook is not None else None
        return process

    def close_output(self) -> None:
        """Close the pipe from spark-submit, which the provider leaves open; call it after the process has ended."""
        process = self.submit_process
        if process is not None and process.stdout is not None:
            process.stdout.close()

    def submit_command(self) -> SubmitCommand:
        """Return the command line of spark-submit, for a caller that starts the process itself."""
        hook = self._get_hook()
        words = tuple(str(word) for word in hook._build_spark_submit_command(self.application))
        # The hook sets its environment as a side effect of building the command line.
        variables = {name: str(value) for name, value in (hook._env or {}).items()}
        return SubmitCommand(words=words, variables=variables)

    def on_kill(self) -> None:
        """End the application if it was started. Otherwise the provider would create a hook without any use."""
        if self._hook is not None:
            super().on_kill()
