"""Export as a service: a table that declares formats is due after each write that a view lacks.

    declared   `lakehouse.export.formats` has a format; other tables are never due
    due        a view does not exist, lacks a write, or does not fit the timeline any more
    run        brings the view of each format to the newest write, due or not

The state of the last export is in the views, so a decision reads their newest metadata: a listing and a small file per
format. A format that fails does not stop the others; the run then fails with its error.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.operations.commit.results import NothingToDo, Totals
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceCost, ServiceRequest
from lakehouse.errors import LakehouseError
from lakehouse.model.display import Condition, Readable, Shown, sentence
from lakehouse.model.instant import Instant
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.platform.export.export import ExportedView, ExportPlan, export_due, plan_export, run_export
from lakehouse.platform.export.formats import view_formats
from lakehouse.spec.options.export import EXPORT_FORMATS, FORMATS
from lakehouse.spec.options.policies import Policies

_UNDECLARED = (
    f"not applicable: the table declares no formats of views; set the option {EXPORT_FORMATS}={','.join(FORMATS)} in "
    "its spec, or with `lakehouse policy set --service export` for a namespace"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportDue(Condition):
    """Whether an export is due, and why. `applies` is False for a table that declares no formats."""

    due: bool
    reason: str
    formats: tuple[str, ...] = ()
    applies: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlans(Readable):
    """The plans of all views that an export would change."""

    views: tuple[ExportPlan, ...]

    def _shown(self) -> Shown:
        return Shown("; ".join(map(repr, self.views)), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported(Readable):
    """The views that an export changed."""

    views: tuple[ExportedView, ...]

    @property
    def instant(self) -> Instant | None:
        """None: the timeline does not change."""
        return None

    @property
    def totals(self) -> Totals:
        """The files that became visible in the views, with their rows and bytes."""
        return Totals(
            rows=sum(view.added_rows for view in self.views),
            files=sum(view.added for view in self.views),
            bytes=sum(view.added_bytes for view in self.views),
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about the views, for people."""
        return tuple(warning for view in self.views for warning in view.warnings)

    def _shown(self) -> Shown:
        return Shown("; ".join(map(repr, self.views)), {"warnings": self.warnings})


def due(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> ExportDue:
    """Return whether a view lacks a write; reads the newest metadata of the views, and lists no data file."""
    del request
    formats = view_formats(policies.export)
    names = tuple(view.name for view in formats)
    if not formats:
        return ExportDue(due=False, reason=_UNDECLARED, applies=False)
    reasons = [reason for view in formats if (reason := export_due(table, view))]
    if not reasons:
        return ExportDue(due=False, reason=f"all writes are in the views ({', '.join(names)})", formats=names)
    return ExportDue(due=True, reason=sentence(*reasons), formats=names)


def plan(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> ExportPlans | NothingToDo:
    """Return the files that each view lacks; `force` writes the views again as a whole.

    Raises UnsupportedError if a format cannot represent a column.
    """
    formats = view_formats(policies.export)
    if not formats:
        return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=_UNDECLARED)
    plans = [plan_export(table, view, policies.export, force=request.force) for view in formats]
    changes = tuple(plan for plan in plans if isinstance(plan, ExportPlan))
    return ExportPlans(views=changes) if changes else _nothing([p for p in plans if isinstance(p, NothingToDo)])


def schedule(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Instant | NothingToDo:
    """Return NothingToDo: an export has no plan on the timeline."""
    del table, policies, request
    reason = "export stores no plan on the timeline; `run` plans and executes in one step"
    return NothingToDo(code=NothingToDoReason.SINGLE_STEP, reason=reason)


def run(
    table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Exported | NothingToDo:
    """Bring the views to the newest write, whether an export is due or not; raises the errors of `plan`.

    A second run changes nothing. Raises ConflictError if other exports keep writing a view.
    """
    del engine  # The driver reads footers and writes metadata.
    formats = view_formats(policies.export)
    if not formats:
        return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=_UNDECLARED)
    table = table.refresh()
    outcomes: list[ExportedView | NothingToDo] = []
    errors: list[LakehouseError] = []
    for view in formats:
        try:
            outcomes.append(run_export(table, view, policies.export, force=request.force))
        except LakehouseError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    views = tuple(outcome for outcome in outcomes if isinstance(outcome, ExportedView))
    return Exported(views=views) if views else _nothing([o for o in outcomes if isinstance(o, NothingToDo)])


def cost(table: LoadedTable, policies: Policies) -> ServiceCost:
    """Return a nominal cost: an export reads footers of changed files and writes metadata."""
    del table
    return ServiceCost(files=max(1, len(policies.export.names)), benefit=1.0)


def _nothing(outcomes: list[NothingToDo]) -> NothingToDo:
    reasons = dict.fromkeys(outcome.reason for outcome in outcomes)
    return NothingToDo(code=outcomes[0].code, reason="; ".join(reasons))
