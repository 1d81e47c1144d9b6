"""The source `custom`: which classes are loaded, and what they may return."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import UserError
from lakehouse.platform.ingest.idle import end_if_idle
from lakehouse.platform.sources.custom import check_custom_source
from lakehouse.platform.sources.registry import open_source
from lakehouse.platform.sources.source import KnownColumns, SourcePlan
from lakehouse.platform.sources.source_context import SourceContext
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.function import ALLOWED_FUNCTIONS
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.options.schema import SchemaPolicy
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.support import custom_log

HERE = "tests.unit.platform.sources.test_custom"


def spec_of(name: str, options: str = "{}") -> TableSpec:
    """Return a spec with this class."""
    lines = f"ingest: {{source: custom, class: '{name}', options: {options}}}"
    return parse_spec(f"table: t\nlocation: x\nrecord_key: id\n{lines}\n", source="t.yaml")


def opened(name: str, allowed: str = "tests.*") -> Any:
    """Open the source of a class."""
    session: Any = None
    environ = {ALLOWED_FUNCTIONS: allowed}
    return open_source(SourceContext(session=session, spec=spec_of(name), environ=environ, storage_options={}))


class Wrong:
    """Returns values that are none of a source."""

    def __init__(self, context: SourceContext) -> None:
        self.plans: Any = {"units": 1}

    def plan(self, checkpoint: str | None, interval: Any, *, full_refresh: bool) -> Any:
        """Return no plan."""
        return self.plans

    @contextmanager
    def read(self, plan: Any, *, known: Any, dead_letters: Any) -> Iterator[Any]:
        """Yield no batch."""
        yield ["row"]

    def verify(self, plan: Any) -> None:
        """Accept every plan."""


class WithoutRead:
    """Lacks a method."""

    def plan(self, checkpoint: str | None, interval: Any, *, full_refresh: bool) -> Any:
        """Return nothing."""


class WithoutParameter(Wrong):
    """Lacks a parameter."""

    def plan(self, checkpoint: str | None, interval: Any) -> Any:  # type: ignore[override]
        """Return nothing."""


def function_source(context: SourceContext) -> Wrong:
    """Return a source."""
    return Wrong(context)


@pytest.mark.parametrize(
    ("name", "allowed", "problem"),
    [
        (
            f"{HERE}:Wrong",
            "",
            r"'tests\..*:Wrong' of the source is not allowed.*tests\.\*, to LAKEHOUSE_ALLOWED_FUNCTIONS",
        ),
        (f"{HERE}:Wrong", f"{HERE}:Other,lakehouse.*", "is not allowed"),
        (
            "no_such_module:Source",
            "*,no_such_module.*",
            r"cannot be loaded \(No module named 'no_such_module'.*Install",
        ),
        (f"{HERE}:Missing", "tests.*", r"cannot be loaded \(module .* has no attribute 'Missing'"),
        (f"{HERE}:function_source", "tests.*", "is not a class but a function"),
        (f"{HERE}:WithoutRead", "tests.*", r"is not a source: it has no method read\(plan, known, dead_letters\)"),
        (f"{HERE}:WithoutParameter", "tests.*", r"its method plan has no parameter 'full_refresh'"),
    ],
)
def test_class_that_is_not_allowed_importable_or_a_source_is_refused_with_the_way_out(
    name: str, allowed: str, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        opened(name, allowed)
    with pytest.raises(UserError, match=problem):
        check_custom_source(spec_of(name), None, {ALLOWED_FUNCTIONS: allowed}, {})


def test_spec_refuses_a_class_that_is_not_a_path_and_an_option_with_a_secret() -> None:
    with pytest.raises(UserError, match=r"class: 'shop\.Invoices' is not of the form package\.module:Class"):
        spec_of("shop.Invoices")
    with pytest.raises(UserError, match=r"secret|password"):
        spec_of("shop:Invoices", "{password: hunter2}")


def test_check_of_the_class_is_called_with_its_options() -> None:
    spec = spec_of(custom_log.NAME, "{log: nowhere}")
    with pytest.raises(UserError, match="log 'nowhere' does not exist"):
        check_custom_source(spec, None, {ALLOWED_FUNCTIONS: custom_log.NAME}, {})


class Session:
    """Plans with its session."""

    def __init__(self, context: SourceContext) -> None:
        self.session = context.session

    def plan(self, checkpoint: str | None, interval: Any, *, full_refresh: bool) -> SourcePlan:
        """Return a plan without units."""
        assert self.session is not None, "the plan needs a session"
        return SourcePlan(units=0, reason="nothing")

    def read(self, plan: Any, *, known: Any, dead_letters: Any) -> Any:
        """Return nothing."""

    def verify(self, plan: Any) -> None:
        """Accept every plan."""


class WithoutSession(Session):
    """Plans without a session."""

    plans_without_spark = True

    def plan(self, checkpoint: str | None, interval: Any, *, full_refresh: bool) -> SourcePlan:
        """Return a plan without units."""
        assert self.session is None
        return SourcePlan(units=0, reason="nothing is new")


def test_run_without_new_records_ends_without_spark_only_if_the_class_says_so(tmp_path: Path) -> None:
    environ = {ALLOWED_FUNCTIONS: "tests.*", "LAKEHOUSE_HOME": str(tmp_path)}
    command = IngestCommand(table="t.yaml")
    assert end_if_idle(spec_of(f"{HERE}:Session"), command, environ=environ, storage_options={}) is None
    report = end_if_idle(spec_of(f"{HERE}:WithoutSession"), command, environ=environ, storage_options={})
    assert report is not None
    assert report.status is JobStatus.NOTHING_TO_DO


def test_wrong_values_of_a_class_are_errors_that_name_it() -> None:
    source = opened(f"{HERE}:Wrong")
    with pytest.raises(UserError, match=r":Wrong: plan returned dict instead of a SourcePlan"):
        source.plan(None, None, full_refresh=False)
    checkpoint: Any = 7
    source.inner.plans = plan = SourcePlan(units=1, reason="one", checkpoint=checkpoint)
    with pytest.raises(UserError, match="plan returned int instead of a plan whose checkpoint is a string or None"):
        source.plan(None, None, full_refresh=False)
    box: Any = None
    known = KnownColumns(policy=SchemaPolicy())
    with (
        pytest.raises(UserError, match="read returned list instead of a Batch or None"),
        source.read(plan, known=known, dead_letters=box),
    ):
        pass
