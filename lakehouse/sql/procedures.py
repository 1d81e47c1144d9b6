"""CALL: the procedures of this package, and Hudi's procedures as aliases.

Each table service is a procedure with the same verbs as `table.services`:
`CALL lakehouse.clean(table => 'sales.orders', op => 'due' | 'plan' | 'schedule' | 'run' | 'show')`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.read.timeline_rows import TimelineFilter
from lakehouse.core.operations.version.version_plan import VersionRequest
from lakehouse.core.table.table import GRACE_S, Table
from lakehouse.errors import UserError, nearest
from lakehouse.spec.contracts.document import encode
from lakehouse.spec.table.services import SERVICE_SPECS, VERSION_CHANGES
from lakehouse.sql.catalog import location_of
from lakehouse.sql.engine import Parameters
from lakehouse.sql.hudi_procedures import ALIASES, OPERATIONS, OTHERS, VERSION_WORDS, Alias
from lakehouse.sql.run_shows import table_of
from lakehouse.sql.run_writes import outcome_rows
from lakehouse.sql.session_tables import SessionTables
from lakehouse.sql.statements import Call, Name
from lakehouse.sql.tokens import name_parts

BLOOM_FILTERS = "bloom_filters"
_LIMIT = 20
_DOCUMENTED = "docs/reference/sql.md lists them"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call by name."""

    procedure: str
    values: Mapping[str, str]

    def text(self, name: str, default: str = "") -> str:
        """Return a string."""
        return self.values.get(name, default)

    def required(self, name: str) -> str:
        """Return a string; raise UserError if it is missing."""
        if name not in self.values:
            raise UserError(f"CALL lakehouse.{self.procedure} needs {name} => '...'", argument=name)
        return self.values[name]

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        text = self.values.get(name, "false").lower()
        if text not in ("true", "false"):
            raise UserError(f"CALL lakehouse.{self.procedure}: {name} => {text!r} is neither true nor false")
        return text == "true"

    def number(self, name: str, default: int) -> int:
        """Return a number of at least 1."""
        text = self.values.get(name, str(default))
        if not text.isdecimal() or int(text) < 1:
            raise UserError(f"CALL lakehouse.{self.procedure}: {name} => {text!r} is not a number of at least 1")
        return int(text)

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of strings, which commas separate."""
        return tuple(part.strip() for part in self.values.get(name, "").split(",") if part.strip())

    def pairs(self, name: str) -> dict[str, str]:
        """Return `key=value` pairs, which commas separate."""
        pairs = [part.partition("=") for part in self.names(name)]
        wrong = next((key for key, sign, _ in pairs if not sign), None)
        if wrong is not None:
            raise UserError(f"CALL lakehouse.{self.procedure}: {name} takes 'key=value, key=value', not {wrong!r}")
        return {key.strip(): value.strip() for key, _, value in pairs}


@dataclass(frozen=True, slots=True)
class Procedure:
    """A procedure: its function, its arguments, and one sentence."""

    run: Callable[[SessionTables, Arguments], pa.Table]
    arguments: tuple[str, ...]
    text: str


def call(session: SessionTables, statement: Call, _: Parameters) -> pa.Table | None:
    """Execute CALL; None for a procedure of another catalog."""
    name = statement.procedure[-1].lower()
    is_ours = len(statement.procedure) == 2 and statement.procedure[0].lower() == "lakehouse"
    if not is_ours and (len(statement.procedure) > 1 or not (name in ALIASES or name in OTHERS)):
        _require_engine(session, statement)
        return None
    if not is_ours and session.engine.session is not None and not _names_table(session, statement):
        return None
    procedure = PROCEDURES.get(name) if is_ours else None
    if procedure is None and name in OTHERS:
        raise UserError(f"Hudi's procedure {name} is not supported here: {OTHERS[name]}", procedure=name)
    if procedure is not None:
        return procedure.run(session, _arguments(name, procedure, dict(statement.named), statement.positional))
    if name not in ALIASES:
        near = nearest(name, [*PROCEDURES, *ALIASES])
        raise UserError(f"there is no procedure lakehouse.{name}.{near} {_DOCUMENTED}")
    return _aliased(session, name, statement)


def _require_engine(session: SessionTables, statement: Call) -> None:
    """Raise UserError for a procedure that the engine cannot have, or whose name is similar to one of this package."""
    name, shown = statement.procedure[-1].lower(), ".".join(statement.procedure)
    near = nearest(name, [*PROCEDURES, *ALIASES])
    if session.engine.session is not None:
        # Another catalog of Spark may have the procedure, but not with a table of this one.
        is_meant = len(statement.procedure) == 1 and (name in PROCEDURES or near)
        if not is_meant or not _names_table(session, statement):
            return
    if name in PROCEDURES:
        raise UserError(f"there is no procedure {shown}: write CALL lakehouse.{name}(...)")
    raise UserError(f"there is no procedure {shown}.{near} Write CALL lakehouse.name(...); {_DOCUMENTED}")


def _names_table(session: SessionTables, statement: Call) -> bool:
    texts = [*statement.named.values(), *statement.positional]
    return any(session.names.exists(name_parts(text)) for text in texts)


def _aliased(session: SessionTables, name: str, statement: Call) -> pa.Table:
    alias: Alias = ALIASES[name]
    procedure = PROCEDURES[alias.procedure]
    if len(statement.positional) > len(alias.positional):
        raise UserError(f"CALL {name}: {len(statement.positional)} arguments are too many")
    given = dict(zip(alias.positional, statement.positional, strict=False)) | dict(statement.named)
    values = dict(alias.fixed)
    for key, value in given.items():
        values[alias.renamed.get(key, key)] = value
    if values.get("op", "").lower() in OPERATIONS:
        values["op"] = OPERATIONS[values["op"].lower()]
    try:
        arguments = _arguments(alias.procedure, procedure, values, ())
    except UserError as error:
        raise UserError(f"CALL {name} is CALL lakehouse.{alias.procedure} here: {error.message}") from None
    return procedure.run(session, arguments)


def _arguments(name: str, procedure: Procedure, values: dict[str, str], positional: Sequence[str]) -> Arguments:
    if len(positional) > len(procedure.arguments):
        raise UserError(f"CALL lakehouse.{name}: {len(positional)} arguments are too many")
    for key, value in zip(procedure.arguments, positional, strict=False):
        if key in values:
            raise UserError(f"CALL lakehouse.{name}: {key} is given twice")
        values[key] = value
    unknown = next((key for key in values if key not in procedure.arguments), None)
    if unknown is not None:
        near = nearest(unknown, procedure.arguments)
        raise UserError(
            f"CALL lakehouse.{name} has no argument {unknown!r}.{near} Arguments are {', '.join(procedure.arguments)}",
            argument=unknown,
        )
    return Arguments(name, values)


def _table(session: SessionTables, arguments: Arguments) -> Table:
    return session.names.open(_name(arguments), _options(session, arguments))


def _name(arguments: Arguments) -> Name:
    text = arguments.required("table")
    return ("lakehouse", text) if "/" in text else name_parts(text)


def _options(session: SessionTables, arguments: Arguments) -> dict[str, str]:
    return {**session.options_of_writes(), **arguments.pairs("options")}


def _service(name: str) -> Callable[[SessionTables, Arguments], pa.Table]:
    def run(session: SessionTables, arguments: Arguments) -> pa.Table:
        table = _table(session, arguments)
        service = table.services.named(name)
        op = arguments.text("op", "run").lower()
        selection: dict[str, Any] = {"pinned": arguments.names("pin")}
        if op == "due":
            return _due(name, service.due(**selection))
        selection |= {"force": arguments.flag("force"), "partitions": arguments.names("partitions")}
        if op == "plan":
            return _plan(name, service.plan(**selection))
        if op == "schedule":
            return _scheduled(name, service.schedule(**selection))
        if op == "run":
            instant = arguments.text("instant") or None
            return _outcome(name, service.run(instant=instant, spark=session.engine.session, **selection))
        if op == "show":
            return _timeline(table, arguments, services=(name,))
        raise UserError(f"CALL lakehouse.{name}: op => {op!r} must be due, plan, schedule, run or show", service=name)

    return run


def _bloom_filters(session: SessionTables, arguments: Arguments) -> pa.Table:
    service, spark = _table(session, arguments).services.bloom_filters, session.engine.session
    match arguments.text("op", "run").lower():
        case "due":
            return _due(BLOOM_FILTERS, service.due(spark=spark))
        case "plan":
            return _plan(BLOOM_FILTERS, service.plan(spark=spark))
        case "schedule":
            return _scheduled(BLOOM_FILTERS, service.schedule(spark=spark))
        case "run":
            return _outcome(BLOOM_FILTERS, service.run(spark=spark))
    raise UserError("CALL lakehouse.bloom_filters: op must be due, plan, schedule or run")


def _due(name: str, condition: Any) -> pa.Table:
    inputs = {field.name: getattr(condition, field.name) for field in fields(condition)}
    is_due = inputs.pop("due", True)
    reason = inputs.pop("reason", "")
    return pa.table(
        {
            "service": pa.array([name]),
            "due": pa.array([bool(is_due)]),
            "reason": pa.array([str(reason)]),
            "inputs": pa.array([_json(inputs)]),
        }
    )


def _plan(name: str, plan: Any) -> pa.Table:
    is_empty = isinstance(plan, NothingToDo)
    return table_of(
        ("service", "plan", "reason"),
        [(name, "" if is_empty else _json(encode(plan)), plan.reason if is_empty else "")],
    )


def _scheduled(name: str, instant: Any) -> pa.Table:
    is_empty = isinstance(instant, NothingToDo)
    return table_of(
        ("service", "instant", "reason"),
        [(name, "" if is_empty else instant.requested, instant.reason if is_empty else "")],
    )


def _outcome(name: str, outcome: Any) -> pa.Table:
    is_empty = isinstance(outcome, NothingToDo)
    instant = None if is_empty else outcome.instant
    totals = None if is_empty else outcome.totals
    return pa.table(
        {
            "service": pa.array([name]),
            "instant": pa.array(["" if instant is None else instant.requested]),
            "rows": pa.array([0 if totals is None else totals.rows], pa.int64()),
            "files": pa.array([0 if totals is None else totals.files], pa.int64()),
            "bytes": pa.array([0 if totals is None else totals.bytes], pa.int64()),
            "reason": pa.array([outcome.reason if is_empty else ""]),
        }
    )


def _timeline(table: Table, arguments: Arguments, *, services: tuple[str, ...] = ()) -> pa.Table:
    wanted = TimelineFilter(services=services, limit=arguments.number("limit", _LIMIT))
    document = table.inspection.instants(wanted)
    return _rows([encode(instant) for instant in document.instants])


def _show_timeline(session: SessionTables, arguments: Arguments) -> pa.Table:
    table = _table(session, arguments)
    wanted = TimelineFilter(
        services=arguments.names("action"),
        limit=arguments.number("limit", _LIMIT),
        archived=arguments.flag("archived"),
    )
    return _rows([encode(instant) for instant in table.inspection.instants(wanted).instants])


def _show_commits(session: SessionTables, arguments: Arguments) -> pa.Table:
    table, limit = _table(session, arguments), arguments.number("limit", _LIMIT)
    loaded = table.refresh()
    instants = table.archived() if arguments.flag("archived") else loaded.timeline.writes()
    rows = []
    for instant, metadata in loaded.store.commits(instants.by_completion()[-limit:]):
        stats = metadata.stats
        rows.append(
            {
                "commit_time": instant.requested,
                "completion_time": instant.completed or "",
                "action": str(instant.action),
                "operation": str(metadata.operation),
                "total_bytes_written": sum(stat.size_bytes for stat in stats),
                "total_files_written": len(stats),
                "total_partitions_written": len({stat.partition for stat in stats}),
                "total_records_written": sum(stat.num_writes for stat in stats),
                "total_insert_records": sum(stat.num_inserts for stat in stats),
                "total_update_records_written": sum(stat.num_updates for stat in stats),
                "total_delete_records": sum(stat.num_deletes for stat in stats),
            }
        )
    return _rows(list(reversed(rows)))


def _stats(session: SessionTables, arguments: Arguments) -> list[dict[str, Any]]:
    table = _table(session, arguments)
    instant = arguments.required("instant")
    commit = next((pair for pair in table.commits() if pair[0].requested == instant), None)
    if commit is None:
        raise UserError(f"there is no commit {instant} on the active timeline; show_commits lists them")
    return [encode(stat) for stat in commit[1].stats]


def _show_commit_files(session: SessionTables, arguments: Arguments) -> pa.Table:
    return _rows(_stats(session, arguments)[: arguments.number("limit", 1_000)])


def _show_commit_partitions(session: SessionTables, arguments: Arguments) -> pa.Table:
    counts: dict[str, list[int]] = {}
    for stat in _stats(session, arguments):
        numbers = (1, *(int(stat[name]) for name in ("num_inserts", "num_updates", "num_deletes", "size_bytes")))
        sums = counts.setdefault(str(stat["partition"]), [0] * len(numbers))
        counts[str(stat["partition"])] = [old + new for old, new in zip(sums, numbers, strict=True)]
    names = ("files", "inserts", "updates", "deletes", "bytes")
    return _rows([{"partition": path, **dict(zip(names, numbers, strict=True))} for path, numbers in counts.items()])


def _show_files(session: SessionTables, arguments: Arguments) -> pa.Table:
    table = _table(session, arguments)
    partition = arguments.values.get("partition")
    document = table.inspection.files(partition, limit=arguments.number("limit", 1_000))
    lists = [
        value for value in encode(document).values() if isinstance(value, list) and value and isinstance(value[0], dict)
    ]
    return _rows(lists[0] if lists else [])


def _show_instant(session: SessionTables, arguments: Arguments) -> pa.Table:
    detail = _table(session, arguments).inspection.instant(arguments.required("instant"))
    return table_of(("name", "value"), [(key, _cell(value)) for key, value in encode(detail).items()])


def _show_properties(session: SessionTables, arguments: Arguments) -> pa.Table:
    return table_of(("key", "value"), sorted(_table(session, arguments).config.raw.items()))


def _show_partitions(session: SessionTables, arguments: Arguments) -> pa.Table:
    return table_of(("partition",), [(path,) for path in _table(session, arguments).partitions()])


def _savepoint(session: SessionTables, arguments: Arguments) -> pa.Table:
    table = _table(session, arguments)
    match arguments.text("op", "list").lower():
        case "create":
            instant = arguments.text("instant") or None
            user, comment = arguments.text("user"), arguments.text("comment")
            return _value(table.savepoint(instant, user=user, comment=comment))
        case "delete":
            return _value(table.delete_savepoint(arguments.required("instant")))
        case "list":
            if "instant" in arguments.values:
                raise UserError("CALL lakehouse.savepoint with an instant needs op => 'create' or op => 'delete'")
            return _rows([_flat(encode(savepoint)) for savepoint in table.savepoints()])
    raise UserError("CALL lakehouse.savepoint: op must be create, delete or list")


def _rollback(session: SessionTables, arguments: Arguments) -> pa.Table:
    table, op = _table(session, arguments), arguments.text("op", "run").lower()
    if op == "failed":
        return _value(table.rollback_failed())
    if op not in ("run", "plan"):
        raise UserError("CALL lakehouse.rollback: op must be plan, run or failed")
    force = arguments.flag("force")
    return _value(table.rollback(arguments.required("instant"), dry_run=op == "plan", force=force))


def _restore(session: SessionTables, arguments: Arguments) -> pa.Table:
    op = arguments.text("op", "run").lower()
    if op not in ("run", "plan"):
        raise UserError("CALL lakehouse.restore: op must be plan or run")
    table = _table(session, arguments)
    return _value(table.restore(arguments.required("to"), dry_run=op == "plan", force=arguments.flag("force")))


def _version_change(verb: str) -> Callable[[SessionTables, Arguments], pa.Table]:
    def run(session: SessionTables, arguments: Arguments) -> pa.Table:
        op = arguments.text("op", "run").lower()
        if op not in ("run", "plan"):
            raise UserError(f"CALL lakehouse.{verb}: op => {op!r} must be plan or run", op=op)
        version, spark = arguments.required("version"), session.engine.session
        # Apache Hudi writes versions as words, such as SIX.
        to, dry_run = VERSION_WORDS.get(version.upper(), version), op == "plan"
        name = _name(arguments)
        if location_of(name) is not None:
            table = session.names.open(name, _options(session, arguments))
            return _value(getattr(table, verb)(to, dry_run=dry_run, spark=spark))
        is_upgrade = verb == VERSION_CHANGES[0]
        request = VersionRequest(to=to, upgrade=is_upgrade, dry_run=dry_run, grace_s=GRACE_S)
        identifier = session.names.registered(name)
        # A recorded run: services of the catalog do not run meanwhile.
        options = _options(session, arguments)
        return _value(session.catalog.change_version(identifier, request, options=options, spark=spark))

    return run


def _policy(session: SessionTables, arguments: Arguments) -> pa.Table:
    scope, service = arguments.required("table"), arguments.required("service")
    match arguments.text("op", "show").lower():
        case "set":
            settings = arguments.pairs("settings")
            session.catalog.set_policy(scope, service, settings)
            return table_of(("scope", "service", "settings"), [(scope, service, _json(settings))])
        case "remove":
            removed = session.catalog.remove_policy(scope, service)
            return pa.table({"scope": [scope], "service": [service], "removed": [removed]})
        case "show":
            return _value(session.catalog.settings(scope, service))
    raise UserError("CALL lakehouse.policy: op must be set, remove or show")


def _ttl_policy(session: SessionTables, arguments: Arguments) -> pa.Table:
    services = _table(session, arguments).services
    match arguments.text("op", "list").lower():
        case "set":
            limits: dict[str, Any] = {
                name: arguments.text(name)
                for name in ("partition_age", "creation_age", "modification_age", "max_bytes", "format", "timezone")
                if arguments.text(name)
            }
            if arguments.text("max_partitions"):
                limits["max_partitions"] = arguments.number("max_partitions", 1)
            rule = services.set_ttl(arguments.required("pattern"), rule_id=arguments.text("id") or None, **limits)
            return _rows([_flat(rule.to_mapping())])
        case "remove":
            services.remove_ttl(arguments.required("id"))
            return table_of(("removed",), [(arguments.text("id"),)])
        case "list":
            return _rows([_flat(rule.to_mapping()) for rule in services.ttl_rules()])
    raise UserError("CALL lakehouse.ttl_policy: op must be set, remove or list")


def _validate(session: SessionTables, arguments: Arguments) -> pa.Table:
    report = _table(session, arguments).validate(
        deep=arguments.flag("deep"), keys=arguments.text("keys", "partition"), spark=session.engine.session
    )
    return _value(report)


def _metadata(session: SessionTables, arguments: Arguments) -> pa.Table:
    metadata, spark = _table(session, arguments).metadata, session.engine.session
    match arguments.text("op", "show").lower():
        case "show":
            return _value(metadata.show())
        case "validate":
            return _value(metadata.validate(spark=spark))
        case "rebuild":
            return _value(metadata.rebuild(spark=spark))
    raise UserError("CALL lakehouse.metadata: op must be show, validate or rebuild")


def _register_table(session: SessionTables, arguments: Arguments) -> pa.Table:
    table = session.catalog.register_table(arguments.required("table"), arguments.required("location"))
    return table_of(("table", "location"), [(arguments.text("table"), table.location)])


def _drop_partition(session: SessionTables, arguments: Arguments) -> pa.Table:
    return outcome_rows(_table(session, arguments).delete_partitions(arguments.names("partition")))


def _truncate_table(session: SessionTables, arguments: Arguments) -> pa.Table:
    table = _table(session, arguments)
    return outcome_rows(table.delete_partitions(arguments.names("partitions") or table.partitions()))


def _help(_: SessionTables, arguments: Arguments) -> pa.Table:
    wanted = arguments.text("procedure").lower()
    rows = [
        (f"lakehouse.{name}", ", ".join(procedure.arguments), procedure.text)
        for name, procedure in PROCEDURES.items()
        if wanted in ("", name)
    ]
    return table_of(("procedure", "arguments", "description"), rows)


def _value(value: Any) -> pa.Table:
    """Return a result as one row; nested values are JSON."""
    if isinstance(value, NothingToDo):
        return table_of(("reason",), [(value.reason,)])
    return _rows([_flat(encode(value))])


def _rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [_scalar(row.get(name)) for row in rows] for name in names}
    return pa.table({name: _array(values) for name, values in columns.items()})


def _array(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} or kinds <= {bool} or kinds <= {int, float}:
        return pa.array(values) if kinds else pa.array(values, pa.string())
    return pa.array([None if value is None else _cell(value) for value in values], pa.string())


def _flat(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _scalar(value) for name, value in mapping.items()}


def _scalar(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else _json(value)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


_OF_SERVICE = ("table", "op", "force", "instant", "partitions", "pin", "limit", "options")
_OF_TABLE = ("table", "options")
PROCEDURES: dict[str, Procedure] = {
    **{spec.name: Procedure(_service(spec.name), _OF_SERVICE, spec.text) for spec in SERVICE_SPECS},
    BLOOM_FILTERS: Procedure(_bloom_filters, ("table", "op", "options"), "Build missing bloom filters of base files"),
    "savepoint": Procedure(
        _savepoint, ("table", "op", "instant", "user", "comment", "options"), "Create, delete and list savepoints"
    ),
    "rollback": Procedure(
        _rollback, ("table", "instant", "op", "force", "options"), "Roll back one write, or all failed writes"
    ),
    "restore": Procedure(
        _restore, ("table", "to", "op", "force", "options"), "Roll back all writes after a savepoint or commit"
    ),
    **{
        verb: Procedure(_version_change(verb), ("table", "op", "version", "options"), f"{text} table version")
        for verb, text in zip(VERSION_CHANGES, ("Change to a newer", "Change to an older"), strict=True)
    },
    "policy": Procedure(_policy, ("table", "service", "op", "settings"), "Show, set and remove settings of a service"),
    "ttl_policy": Procedure(
        _ttl_policy,
        (
            *("table", "op", "pattern", "id", "partition_age", "creation_age", "modification_age"),
            *("max_partitions", "max_bytes", "format", "timezone", "options"),
        ),
        "Set, remove and list the TTL rules of a table",
    ),
    "validate": Procedure(_validate, ("table", "deep", "keys", "options"), "Check the invariants of a table"),
    "metadata": Procedure(_metadata, ("table", "op", "options"), "Show, validate and rebuild the metadata table"),
    "register_table": Procedure(_register_table, ("table", "location"), "Register an existing Hudi table"),
    "drop_partition": Procedure(_drop_partition, ("table", "partition", "options"), "Delete partitions by their paths"),
    "truncate_table": Procedure(_truncate_table, ("table", "partitions", "options"), "Delete all rows"),
    "show_timeline": Procedure(
        _show_timeline, ("table", "limit", "action", "archived", "options"), "Show the newest instants"
    ),
    "show_commits": Procedure(
        _show_commits, ("table", "limit", "archived", "options"), "Show the newest commits with their numbers"
    ),
    "show_commit_files": Procedure(
        _show_commit_files, ("table", "instant", "limit", "options"), "Show the files of a commit"
    ),
    "show_commit_partitions": Procedure(
        _show_commit_partitions, ("table", "instant", "limit", "options"), "Show the partitions of a commit"
    ),
    "show_instant": Procedure(
        _show_instant, ("table", "instant", "limit", "options"), "Show one instant with its plan or commit"
    ),
    "show_files": Procedure(_show_files, ("table", "partition", "limit", "options"), "Show the newest file groups"),
    "show_partitions": Procedure(_show_partitions, _OF_TABLE, "Show the paths of the partitions"),
    "show_properties": Procedure(_show_properties, ("table", "limit", "options"), "Show the properties of a table"),
    "help": Procedure(_help, ("procedure",), "List the procedures"),
}
