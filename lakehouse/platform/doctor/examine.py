"""The registry of the checks in Spark's environment; each check runs separately, with a time limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from lakehouse import __version__
from lakehouse.core.system.time_limit import call_within
from lakehouse.errors import LakehouseError
from lakehouse.platform.doctor import catalog_checks, environment_checks, service_checks, storage_checks
from lakehouse.platform.doctor.deployment import Deployment
from lakehouse.platform.doctor.finding import Finding, failed
from lakehouse.spec.contracts.doctor import CHECKS, CheckedEnvironment, CheckResult, CheckState, DoctorReport
from lakehouse.spec.secrets import redact_text

Check = Callable[[Deployment], Finding]
#: Maximum duration of one check, in seconds.
LIMIT_S = 30.0
#: Name -> function, for each check of Spark's environment.
FUNCTIONS: Mapping[str, Check] = MappingProxyType(
    {
        "python": environment_checks.check_python,
        "packages": environment_checks.check_packages,
        "pyspark": environment_checks.check_pyspark,
        "spark_jars": environment_checks.check_spark_jars,
        "java": environment_checks.check_java,
        "reports": environment_checks.check_reports,
        "specs": environment_checks.check_specs,
        "modules": environment_checks.check_modules,
        "catalog": catalog_checks.check_catalog,
        "migrations": catalog_checks.check_migrations,
        "database_clock": catalog_checks.check_database_clock,
        "metastore": service_checks.check_metastore,
        "storage": storage_checks.check_storage,
        "connectors": storage_checks.check_connectors,
        "storage_clock": storage_checks.check_storage_clock,
        "lock_clients": service_checks.check_lock_clients,
    }
)


def examine(
    deployment: Deployment,
    names: Iterable[str] = (),
    *,
    functions: Mapping[str, Check] = FUNCTIONS,
    limit_s: float = LIMIT_S,
    begin: Callable[[str], None] | None = None,
) -> DoctorReport:
    """Run checks one after another and return their results.

    An error or a late answer is a failure of its check and does not stop the others.

    Args:
        deployment: The deployment and settings that the checks read.
        names: Names of the checks; all checks by default.
        functions: The functions of the checks.
        limit_s: Maximum duration of one check, in seconds.
        begin: Called with the name of each check before it runs.
    """
    chosen = [name for name in functions if name in set(names or functions)]
    results = []
    for name in chosen:
        if begin is not None:
            begin(name)
        results.append(result_of(name, _run(functions[name], deployment, limit_s)))
    return DoctorReport(lakehouse_version=__version__, python_version=sys.version.split()[0], checks=tuple(results))


def result_of(name: str, finding: Finding) -> CheckResult:
    """Return the result of a check: without secrets, and with the advice of its description for a problem."""
    is_problem = finding.state in (CheckState.FAILED, CheckState.WARNING)
    description = CHECKS.get(name)
    advice = finding.advice or (description.advice if description else "")
    return CheckResult(
        name=name,
        environment=description.environment if description else CheckedEnvironment.SPARK,
        state=finding.state,
        found=redact_text(" ".join(finding.found.split())),
        advice=redact_text(advice) if is_problem else "",
    )


def _run(check: Check, deployment: Deployment, limit_s: float) -> Finding:
    try:
        return call_within(limit_s, lambda: check(deployment))
    except TimeoutError:
        return failed(f"no answer within {limit_s:g} s")
    except LakehouseError as error:
        return failed(f"{type(error).__name__}: {error}")
    except Exception as error:
        return failed(f"unexpected error {type(error).__name__}: {error}")
