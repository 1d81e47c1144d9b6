"""Every public call accepts one text instead of a list of texts and refuses values that are not text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import lakehouse.platform.publish.run as publish_run
import lakehouse.platform.publish.status as publish_status
from lakehouse.core.operations.create.declare import TableDeclaration, declared_properties
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.services import TableService, TableServices
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.keys import TimestampFormat
from lakehouse.model.texts import text_list
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.run_history import RunHistory
from lakehouse.platform.publish.publication_plan import PublishRequest
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.table.publish import parse_publish
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.support.publishing import make_job, rows_of
from tests.support.tables import make_env

ROWS = pa.table({"id": ["a", "b"], "day": ["1", "2"], "ts": [1, 1], "v": [1, 2]})
DAY = "day=1"


def make(**declared: Any) -> Table:
    """Return a new table with rows of two days."""
    env = make_env(storage=MemoryStorage())
    options = {"hoodie.datasource.write.hive_style_partitioning": "true"}
    kept = {"record_key": "id", "partition_by": "day", "options": options} | declared
    table = Table.create(env.storage.root, name="orders", env=env, **kept)
    table.upsert(ROWS)
    return table


def signalled(names: Any) -> Any:
    """Return the names in a signal for some days of a publication."""
    job = make_job({"ready": ["signal"]})
    job.table.upsert(rows_of(("a", "2025-03-01T10:00:00", 1)))
    return publish_run.signal(job, names)


def withdrawn(names: Any) -> Any:
    """Return the withdrawn partitions of a publication with one day."""
    job = make_job({"ready": ["signal"]})
    job.table.upsert(rows_of(("a", "2025-03-01T10:00:00", 1)))
    publish_run.signal(job, ["2025-03-01"])
    publish_run.run(job)
    return publish_run.withdraw(job, names)


def status_of(names: Any) -> Any:
    """Return the partitions in the status."""
    job = make_job()
    job.table.upsert(rows_of(("a", "2025-03-01T10:00:00", 1)))
    return tuple(row.partition for row in publish_status.status(job, names))


def deleted(keys: Any) -> Any:
    """Return the remaining keys after a delete."""
    table = make(partition_by=())
    table.delete(keys)
    return tuple(table.scan("id").to_arrow()["id"].to_pylist())


def left_days(partitions: Any) -> Any:
    """Return the remaining partitions after a delete."""
    table = make()
    table.delete_partitions(partitions)
    return table.partitions()


def expiring(verb: Callable[[TableServices, Any], Any]) -> Callable[[Any], Any]:
    """Return a call that returns the partitions that a ttl with pinned partitions deletes or plans to delete."""

    def expired(pinned: Any) -> Any:
        table = make().with_options(
            {
                "hoodie.partition.ttl.strategy.days.retain": "1",
                "hoodie.partition.ttl.management.strategy.type": "KEEP_BY_CREATION_TIME",
            }
        )
        table.refresh().env.clock.sleep(3 * 86_400)
        return verb(table.services, pinned)

    return expired


#: name -> a call with the argument, the one text, and what the call has to return for it.
CALLS: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "Table.create record_key": (lambda v: make(record_key=v).config.keys.record_key_fields, "id", ("id",)),
    "Table.create partition_by": (lambda v: make(partition_by=v).config.keys.partition_fields, "day", ("day",)),
    "Table.create ordering": (lambda v: make(ordering=v).config.merge_rule.ordering, "ts", ("ts",)),
    "Table.open allowed_functions": (
        lambda v: Table.open("", env=make().refresh().env, allowed_functions=v).config.allowed_functions,
        "house.mergers:newest",
        ("house.mergers:newest",),
    ),
    "Table.delete": (deleted, "a", ("b",)),
    "Table.delete_partitions": (left_days, DAY, ("day=2",)),
    "Table.scan columns": (lambda v: tuple(make().scan(v).to_arrow().schema.names), "day", ("day",)),
    "Table.incremental columns": (
        lambda v: tuple(make().incremental("earliest", columns=v).to_arrow().schema.names),
        "day",
        ("day",),
    ),
    "TableService.schedule pinned": (
        lambda v: type(make().services.clean.schedule(pinned=v)).__name__,
        "20250615150640021",
        "NothingToDo",
    ),
    "TableService.run pinned": (
        lambda v: type(make().services.clean.run(pinned=v)).__name__,
        "20250615150640021",
        "NothingToDo",
    ),
    "TableService.due pinned": (expiring(lambda s, v: s.ttl.due(pinned=v).due), DAY, True),
    "TableService.plan pinned": (
        expiring(lambda s, v: s.ttl.plan(pinned=v).partitions),
        DAY,
        ("day=2",),
    ),
    "TableService.run pinned, ttl": (
        expiring(lambda s, v: tuple(s.ttl.run(pinned=v).metadata.replaced)),
        DAY,
        ("day=2",),
    ),
    "TableDeclaration record_key": (lambda v: TableDeclaration(name="t", record_key=v).record_key, "id", ("id",)),
    "TableDeclaration partition_by": (
        lambda v: TableDeclaration(name="t", record_key=("id",), partition_by=v).partition_by,
        "day",
        ("day",),
    ),
    "TableDeclaration ordering": (
        lambda v: TableDeclaration(name="t", record_key=("id",), ordering=v).ordering_columns,
        "ts",
        ("ts",),
    ),
    "TimestampFormat input_formats": (
        lambda v: TimestampFormat(input_formats=v).input_formats,
        "yyyy-MM-dd",
        ("yyyy-MM-dd",),
    ),
    "TableSpec record_key": (lambda v: TableSpec(table="t", location="x", record_key=v).record_key, "id", ("id",)),
    "TableSpec ordering": (
        lambda v: TableSpec(table="t", location="x", record_key=("id",), ordering=v).ordering,
        "ts",
        ("ts",),
    ),
    "ServiceCommand also": (
        lambda v: ServiceCommand(service="clean", table="t", also=v).tables,
        "u.x",
        ("t", "u.x"),
    ),
    "ServiceCommand partitions": (
        lambda v: ServiceCommand(service="clean", table="t", partitions=v).partitions,
        DAY,
        (DAY,),
    ),
    "PublishRequest names": (lambda v: PublishRequest(names=v).names, "dt=2025-03-01", ("dt=2025-03-01",)),
    "publish.signal": (signalled, "2025-03-01", ("dt=2025-03-01",)),
    "publish.withdraw": (withdrawn, "2025-03-01", ("dt=2025-03-01",)),
    "publish.status": (status_of, "2025-03-01", ("dt=2025-03-01",)),
}


@pytest.mark.parametrize("name", CALLS)
def test_single_text_is_a_list_of_one(name: str) -> None:
    call, text, expected = CALLS[name]
    assert call([text]) == expected, "as a list"
    assert call(text) == expected, "as a text"


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("value", [b"id", 7, [7], {"id": 1}, [None], [["id"]]], ids=str)
def test_value_that_is_no_text_is_refused_with_the_argument_name(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=r"give a string|rows are of type|row 0 is"):
        CALLS[name][0](value)


@pytest.mark.parametrize("name", ["Table.create record_key", "TableDeclaration ordering", "Table.scan columns"])
def test_set_of_columns_is_refused_if_their_order_matters(name: str) -> None:
    with pytest.raises(UserError, match="is a set, whose order changes"):
        CALLS[name][0]({"id", "day"})


@pytest.mark.parametrize("section", ["record_key: id", "record_key: [id]", "record_key:\n  - id"])
def test_spec_takes_a_column_or_a_list_of_columns(section: str) -> None:
    spec = parse_spec(
        f"table: sales.orders\nlocation: /x\n{section}\npartition_by: day\nordering: ts\n", source="o.yaml"
    )
    assert (spec.record_key, spec.ordering) == (("id",), ("ts",))
    assert [column.name for column in spec.partition_by] == ["day"]


@pytest.mark.parametrize("ready", ["signal", ["signal"], ("signal",)])
def test_publish_section_takes_a_text_or_a_list(ready: Any) -> None:
    assert parse_publish("t", {"database": "d", "ready": ready}).ready == ("signal",)


def test_declaration_accepts_columns_in_one_text_like_a_spec() -> None:
    one = TableDeclaration(name="t", record_key="id, day", partition_by="p,q", ordering="ts,at")  # type: ignore[arg-type]
    several = TableDeclaration(name="t", record_key=("id", "day"), partition_by=("p", "q"), ordering=("ts", "at"))
    assert declared_properties(one) == declared_properties(several)
    assert declared_properties(one)["hoodie.table.keygenerator.type"] == "COMPLEX"


@pytest.mark.parametrize("name", ["record_key", "partition_by", "ordering"])
def test_declaration_refuses_duplicate_and_unnamed_columns(name: str) -> None:
    declared: dict[str, Any] = {"name": "t", "record_key": ("k",)}
    with pytest.raises(UserError, match=f"{name}: column 'id' is named twice"):
        TableDeclaration(**declared | {name: ["id", "id"]})
    with pytest.raises(UserError, match=f"{name}='id,' has a column without a name"):
        TableDeclaration(**declared | {name: "id,"})


def test_empty_text_is_refused_unless_it_is_a_partition() -> None:
    with pytest.raises(UserError, match="record_key contains the empty string ''"):
        text_list("", "record_key")
    assert text_list("", "partitions", allow_empty=True) == ("",)
    assert text_list(None, "partitions") == ()


def test_every_public_list_parameter_accepts_a_text() -> None:
    """A new list parameter of these classes must accept `str` and occur in the calls above."""
    public = [
        Table,
        TableServices,
        TableService,
        Catalog,
        RunHistory,
        publish_run.signal,
        publish_run.withdraw,
        publish_status.status,
    ]
    members = [m for item in public for m in (vars(item).values() if inspect.isclass(item) else [item])]
    functions = [getattr(member, "__func__", member) for member in members]
    lists = re.compile(r"(Sequence|Collection|Iterable|list|tuple)\[str(, \.\.\.)?\]")
    found = [
        (function.__qualname__, name, str(kind))
        for function in functions
        if inspect.isfunction(function) and not function.__name__.startswith("_")
        for name, kind in inspect.get_annotations(function).items()
        if name != "return" and lists.search(str(kind))
    ]
    assert len(found) > 12, "the parameters are found"
    assert [entry for entry in found if not entry[2].startswith(("str | ", "Mapping["))] == []
