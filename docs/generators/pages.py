"""The generated pages of the reference by their file names."""

from __future__ import annotations

from collections.abc import Callable

from docs.generators.airflow_versions import airflow_versions_page
from docs.generators.alarm_rules import alarm_rules_page
from docs.generators.commands import commands_page
from docs.generators.contracts import contracts_page
from docs.generators.environment import environment_page
from docs.generators.errors import errors_page
from docs.generators.expressions import expressions_page
from docs.generators.hudi_options import hudi_options_page
from docs.generators.metrics import metrics_page
from docs.generators.options import options_page
from docs.generators.python_api import python_api_page
from docs.generators.readers import readers_page
from docs.generators.rest import rest_page
from docs.generators.spec_file import spec_file_page

REFERENCE: dict[str, Callable[[], str]] = {
    "spec-file.md": spec_file_page,
    "options.md": options_page,
    "hudi-options.md": hudi_options_page,
    "commands.md": commands_page,
    "exit-codes.md": errors_page,
    "metrics.md": metrics_page,
    "alarm-rules.md": alarm_rules_page,
    "environment.md": environment_page,
    "contracts.md": contracts_page,
    "python.md": python_api_page,
    "rest.md": rest_page,
    "expressions.md": expressions_page,
    "readers.md": readers_page,
    "airflow-versions.md": airflow_versions_page,
}
