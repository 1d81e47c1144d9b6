"""Trigger forms: the params of all DAGs, each declared once.

Airflow's form marks a field as required unless its type allows null. Therefore every type here allows null, and an
empty form starts a normal run. A list with `examples` becomes a multi-select of these values; the JSON of "Advanced
Options" also accepts others. Each function returns new Param objects, because Airflow stores a run's value in the
object.

The data interval is given in one place. For an ingestion this is "Data Interval" of Airflow's own dialog. A service or
a publication works on whole tables and ignores the data interval of its run; the section "Limit to days" limits it. An
ingestion also accepts the params of that section in its conf, because two runs cannot have the same logical date.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse.errors import UserError, nearest
from lakehouse.spec.table.services import service_spec
from lakehouse_airflow.compat import Param
from lakehouse_airflow.data_intervals import END, START

_DAYS_SECTION, _MORE_SECTION, _LETTERS_SECTION = "Limit to days", "More", "Dead letters"
_TEXT = {"type": ["null", "string"]}
_LIST = {"type": ["null", "array"], "items": {"type": "string"}}
_FLAG = {"type": ["null", "boolean"]}
_DATE = {"type": ["null", "string"], "format": "date-time", "section": _DAYS_SECTION}
_OF_SERVICE = "The run works on the partitions of these days only, for example from 2026-03-01 00:00."
_OF_PUBLICATION = "The run publishes the partitions of these days only, for example from 2026-03-01 00:00."


def ingest_form(*, snapshots: bool = False, replays: bool = True) -> dict[str, Param]:
    """Return the form of an ingestion.

    Args:
        snapshots: Whether the source has snapshots that can be read again.
        replays: Whether dead letters of the source can be replayed.
    """
    refresh = Param(
        False,
        **_FLAG,
        title="Full refresh",
        description="Ingest files again even if earlier commits contain them, for example after columns were added.",
    )
    form = {"full_refresh": refresh}
    if snapshots:
        form["resnapshot"] = Param(
            None,
            **_LIST,
            title="Read again",
            description="Source tables to read again from their first row while the change stream continues, "
            "for example "
            "shop.orders. Write one name per line.",
        )
    return {**form, **(_letters() if replays else {}), "options": _options()}


def service_form(service: str, tables: Iterable[str] = ()) -> dict[str, Param]:
    """Return the form of a table service on the tables of the catalog.

    Args:
        service: Name of the service. Only services that can be limited to partitions get params for partitions.
        tables: Table names that the form offers.
    """
    form = {"tables": _tables(tables)}
    if service_spec(service).by_partition:
        form["partitions"] = _partitions("Work on these partitions only, one path per line, for example 2026-03-01.")
        form |= _days(_OF_SERVICE)
    force = Param(
        False, **_FLAG, title="Force", description="Run even if the service is not due, for example before a report."
    )
    return {**form, "force": force, "dry_run": _dry_run(), "options": _options()}


def schedule_form(tables: Iterable[str] = ()) -> dict[str, Param]:
    """Return the form of `services.schedule`. `tables` are the table names that it offers."""
    return {"tables": _tables(tables)}


def publish_form() -> dict[str, Param]:
    """Return the form of a publication."""
    return {
        "partitions": _partitions("Publish these partitions only, one name per line, for example dt=2026-03-01."),
        **_days(_OF_PUBLICATION),
        "force": Param(
            False,
            **_FLAG,
            title="Force",
            description="Publish partitions again or before they are ready, for example dt=2026-03-01 after a "
            "correction. It needs partitions or an interval.",
        ),
        "newest": Param(
            False,
            **_FLAG,
            title="Newest version",
            description="Publish the newest version of the table instead of the version at the end of the partition's "
            "period, for example with rows that arrived late.",
        ),
        "dry_run": _dry_run(),
    }


def check_conf(context: Mapping[str, Any]) -> None:
    """Raise UserError if a name in the run's conf is similar to a param, and probably misspelt.

    Airflow accepts unknown names, so a run with `tabels` instead of `tables` would work on all tables.
    """
    run, dag = context.get("dag_run"), context.get("dag")
    conf, params = getattr(run, "conf", None) or {}, getattr(dag, "params", None) or {}
    for name in conf:
        hint = "" if name in params else nearest(str(name), list(params))
        if hint:
            raise UserError(f"the run's conf contains {name!r}, which is not a param of this DAG.{hint}", param=name)


def _tables(names: Iterable[str]) -> Param:
    offered = sorted({name if "." in name else f"default.{name}" for name in names})
    choices = {"examples": offered} if offered else {}
    other = ' The JSON of Advanced Options accepts other tables, for example {"tables": ["sales.items"]}.'
    return Param(
        None,
        **_LIST,
        **choices,
        title="Tables",
        description="The tables to work on, for example sales.orders. Leave it empty for all tables of the catalog."
        + (other if offered else " Write one name per line."),
    )


def _partitions(description: str) -> Param:
    return Param(None, **_LIST, title="Partitions", description=f"{description} Leave it empty for all.")


def _days(description: str) -> dict[str, Param]:
    start = Param(
        None,
        **_DATE,
        title="From",
        description=f"{description} Leave both fields empty for a normal run. The Data Interval above does not "
        "limit the run. A time without an offset is in Airflow's time zone.",
    )
    end = Param(
        None,
        **_DATE,
        title="Before",
        description="The first moment after the last day, for example 2026-03-02 00:00 for the day 2026-03-01.",
    )
    return {START: start, END: end}


def _dry_run() -> Param:
    return Param(
        False, **_FLAG, title="Dry run", description="Write the plan to the log of the first task and change nothing."
    )


def _options() -> Param:
    return Param(
        {},
        type=["null", "object"],
        section=_MORE_SECTION,
        title="Options",
        description="Options of this run only, for example "
        '{"hoodie.clustering.plan.strategy.sort.columns": "zone"}. The command lakehouse options lists all options.',
    )


def _letters() -> dict[str, Param]:
    """Return the params that select dead letters to replay."""
    replay = Param(
        False,
        **_FLAG,
        title="Replay dead letters",
        description="Parse bad records of earlier runs again, for example after the schema was corrected.",
        section=_LETTERS_SECTION,
    )
    commit = Param(
        None,
        **_TEXT,
        title="Commit with dead letters",
        description="Replay the dead letters of this commit only, for example 20260131120000000.",
        section=_LETTERS_SECTION,
    )
    folder = Param(
        None,
        **_TEXT,
        title="Folder of dead letters",
        description="Replay the dead letters of this folder only, for example the folder refused of a failed run.",
        section=_LETTERS_SECTION,
    )
    return {"replay": replay, "commit": commit, "dead_letters": folder}
