"""The page of exit codes, errors and reason codes."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from enum import StrEnum

from docs.generators.markdown import code, member_texts, page, prose, sentences, table
from lakehouse import errors
from lakehouse.errors import LakehouseError, SourceMissingError, TableBusyError
from lakehouse.model.drift import Drift
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.platform.catalog.run_history import RequestState, RunState
from lakehouse.spec import contracts
from lakehouse.spec.contracts.job import JobError

_INTRO = """\
The class of an error says what a caller does. The exit code of a job follows from the class, and Airflow acts on it.
Programs test the class, the exit code or the codes below, never the text of a message."""
_OTHER = "A defect, or a fault of another package or of the environment. It may be transient."
_ZERO = """\
Exit code 0 is success: a run without work reports `nothing_to_do` and emits no asset event. `lakehouse table validate`
exits with 65 if an invariant of the table is violated. Ctrl-C ends a command with the exit code {interrupted}."""


def errors_page() -> str:
    """Return the page with the error classes and with all codes of reports, decisions and states."""
    rows = [
        (
            code(kind.__name__),
            str(kind.exit_code),
            code(_error_code(kind)),
            _airflow(kind),
            sentences(prose(kind.__doc__)),
        )
        for kind in error_classes()
    ]
    rows.append(("any other exception", "70", code("internal"), "retries", _OTHER))
    parts = [
        _INTRO,
        "## Errors",
        table(("error", "exit code", "code in reports", "Airflow", "meaning"), rows),
        _ZERO.format(interrupted=errors.INTERRUPTED),
    ]
    for kind in reason_codes():
        texts = member_texts(kind)
        parts += [f"## {kind.__name__}", sentences(prose(kind.__doc__))]
        parts.append(table(("code", "meaning"), ((code(str(member.value)), texts[member.name]) for member in kind)))
    return page("Exit codes and errors", "lakehouse/errors.py and lakehouse/spec/contracts", *parts)


def error_classes() -> Iterator[type[LakehouseError]]:
    """Yield the public error classes, by exit code."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LakehouseError)]
    yield from sorted(kinds, key=lambda kind: (kind.exit_code, len(kind.__mro__), kind.__name__))


def reason_codes() -> Iterator[type[StrEnum]]:
    """Yield the enums of all contracts, and those of operations and of the catalog."""
    found: dict[str, type[StrEnum]] = {}
    for module in pkgutil.iter_modules(contracts.__path__, f"{contracts.__name__}."):
        for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(kind, StrEnum) and kind.__module__.startswith(contracts.__name__):
                found[name] = kind
    found |= {kind.__name__: kind for kind in (Drift, NothingToDoReason, RunState, RequestState)}
    yield from (found[name] for name in sorted(found))


def _error_code(kind: type[LakehouseError]) -> str:
    # No error class needs more than these arguments to be built for its code.
    error = kind.__new__(kind)
    error.args = ("",)
    for name, value in (("wait_for_s", 0.0), ("setting", "")):
        setattr(error, name, value)
    return str(JobError.of(error).code.value)


def _airflow(kind: type[LakehouseError]) -> str:
    if issubclass(kind, TableBusyError | SourceMissingError):
        return "reschedules"
    return "retries" if kind.retryable else "fails without a retry"
