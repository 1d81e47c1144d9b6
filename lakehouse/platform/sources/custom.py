"""The source `custom`: a user-provided class that implements `Source` and that the deployment allows.

The class is called with a `SourceContext`, whose spec contains its options, and has the methods `plan`, `read` and
`verify`. It may have a static method `check(options, environ)`, which a run and `--check` call before there is a Spark
session. With `plans_without_spark = True` the plan is computed before a session exists, so a run without new records
starts no Spark.

Return values are checked, so that an error message contains the name of the class. As for all sources, `select` of the
spec is applied to the rows, and rows without a record key are bad records. The frame of a batch may be an Arrow table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakehouse.errors import UserError
from lakehouse.platform.sources.dead_letters import DeadLetterBox, set_aside
from lakehouse.platform.sources.source import Batch, Interval, KnownColumns, SourcePlan
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from lakehouse.spark.bad_records import count_records, good_rows, pin, select_columns, unpin
from lakehouse.spark.sources import arrow_frame
from lakehouse.spark.transforms import marked_rows
from lakehouse.spec.function import ALLOWED_FUNCTIONS, deployment_functions, is_allowed, named_function
from lakehouse.spec.sources.custom_source import CustomSourceSpec
from lakehouse.spec.table.table_spec import TableSpec

_METHODS: Mapping[str, tuple[str, ...]] = {
    "plan": ("checkpoint", "interval", "full_refresh"),
    "read": ("plan", "known", "dead_letters"),
    "verify": ("plan",),
}


def custom_source_of(spec: TableSpec) -> CustomSourceSpec:
    """Return the custom source settings of a spec."""
    source = ingest_of(spec).source
    assert isinstance(source, CustomSourceSpec), f"the source of table {spec.table} is {source.KIND}"
    return source


def check_custom_source(
    spec: TableSpec, interval: Interval | None, environ: Mapping[str, str], storage_options: Mapping[str, str]
) -> None:
    """Check that the class is allowed, can be imported and is a source; call its `check` method if it exists.

    Raises UserError with the class and the remedy.
    """
    settings = custom_source_of(spec)
    check = getattr(source_class(settings.class_name, environ), "check", None)
    if check is not None:
        check(settings.options, environ)


def plans_without_spark(spec: TableSpec, environ: Mapping[str, str]) -> bool:
    """Return whether a spec's class plans without Spark; raise UserError in the same cases as `check_custom_source`."""
    return bool(getattr(source_class(custom_source_of(spec).class_name, environ), "plans_without_spark", False))


def open_custom_source(context: SourceContext) -> CustomSource:
    """Create an instance of a spec's class; raise UserError if it is not allowed, not importable or not a source."""
    name = custom_source_of(context.spec).class_name
    made = source_class(name, context.environ)(context)
    _require_methods(name, made)
    return CustomSource(name=name, inner=made, context=context)


def source_class(name: str, environ: Mapping[str, str]) -> Callable[[SourceContext], Any]:
    """Return a class that the deployment allows; raise UserError if it does not, or if it is not a source."""
    if not is_allowed(name, deployment_functions(environ)):
        raise UserError(
            f"the class {name!r} of the source is not allowed: a spec must not run any code. Add it, or a pattern such "
            f"as {name.partition(':')[0].partition('.')[0]}.*, to {ALLOWED_FUNCTIONS} of the deployment",
            function=name,
        )
    loaded = named_function(
        name,
        what="the class of the source",
        hint="Install its package in Spark's environment, or add its folder to PYTHONPATH or LAKEHOUSE_MODULES.",
    )
    if not isinstance(loaded, type):
        raise UserError(f"{name!r} is not a class but a {type(loaded).__name__}: a source is a class", function=name)
    _require_methods(name, loaded)
    return loaded


def _require_methods(name: str, source: Any) -> None:
    """Raise UserError for a class, or its instance, that lacks a `Source` method or one of its parameters."""
    for method, parameters in _METHODS.items():
        function = getattr(source, method, None)
        if not callable(function):
            raise UserError(
                f"the class {name!r} is not a source: it has no method {method}({', '.join(parameters)}). "
                "lakehouse.platform.sources.source.Source has the three methods of a source",
                function=name,
            )
        accepted = inspect.signature(function).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
        # The first parameters are passed by position.
        lacking = [one for one in parameters[1:] if one not in accepted and one != "interval" and not takes_all]
        if lacking:
            raise UserError(
                f"the class {name!r} is not a source: its method {method} has no parameter {lacking[0]!r}; it needs "
                f"({', '.join(parameters)})",
                function=name,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSource:
    """A source that wraps a user-provided class; see `Source`."""

    name: str
    inner: Any
    context: SourceContext

    def plan(self, checkpoint: str | None, interval: Interval | None, *, full_refresh: bool) -> SourcePlan:
        """Return the plan of the class; raise UserError if its type or the type of its checkpoint is wrong."""
        plan = self.inner.plan(checkpoint, interval, full_refresh=full_refresh)
        if not isinstance(plan, SourcePlan):
            raise self._wrong("plan", "a SourcePlan", plan)
        if plan.checkpoint is not None and not isinstance(plan.checkpoint, str):
            raise self._wrong("plan", "a plan whose checkpoint is a string or None", plan.checkpoint)
        return plan

    @contextmanager
    def read(self, plan: SourcePlan, *, known: KnownColumns, dead_letters: DeadLetterBox) -> Iterator[Batch | None]:
        """Yield the class's rows after `select`; rows without a record key are separated."""
        opened = self.inner.read(plan, known=known, dead_letters=dead_letters)
        if not hasattr(opened, "__enter__"):
            raise self._wrong("read", "a context manager (see contextlib.contextmanager)", opened)
        with opened as batch:
            if batch is not None and not isinstance(batch, Batch):
                raise self._wrong("read", "a Batch or None", batch)
            if batch is None or self.context.session is None:
                yield batch
                return
            with self._selected(batch, dead_letters) as rows:
                yield rows

    def verify(self, plan: SourcePlan) -> None:
        """Verify the plan with the method of the class."""
        self.inner.verify(plan)

    @contextmanager
    def _selected(self, batch: Batch, dead_letters: DeadLetterBox) -> Iterator[Batch]:
        """Yield a batch with the rows that have a record key."""
        spec, section = self.context.spec, ingest_of(self.context.spec)
        frame: Any = batch.frame
        if isinstance(frame, pa.Table):
            frame = arrow_frame(self.context.session, frame)
        if section.transform is not None or batch.views is not None:
            # The transform computes the key, and its rows are checked after it.
            yield replace(batch, frame=frame)
            return
        marked = marked_rows(select_columns(frame, section.select), spec.record_key, section.source.description)
        pin(marked)
        try:
            ((records, bad),) = count_records(marked, 1)
            box = replace(dead_letters, attempt=f"{dead_letters.attempt}/keyless")
            set_aside(marked, bad, spec.table, box, allowed=max(0, section.max_bad_records - batch.bad_records))
            yield replace(batch, frame=good_rows(marked), rows=records - bad, bad_records=batch.bad_records + bad)
        finally:
            unpin(marked)

    def _wrong(self, method: str, expected: str, value: object) -> UserError:
        return UserError(
            f"the source {self.name}: {method} returned {type(value).__name__} instead of {expected}",
            function=self.name,
        )
