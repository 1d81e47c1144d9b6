"""Executes INSERT, UPDATE, DELETE, MERGE and TRUNCATE.

The engine evaluates the query of INSERT and the source of MERGE. Conditions and assignments are expressions of the
table itself (`lakehouse.core.expressions`). A condition with a subquery is evaluated by the engine: it returns keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakehouse.core.engine.adapters import frame_batches
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.rows.partition_path import DEFAULT_PARTITION, parse_partition_path
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError, nearest
from lakehouse.model.commit import Operation
from lakehouse.model.display import count_text
from lakehouse.sql.engine import Parameters, Target
from lakehouse.sql.references import literal_text
from lakehouse.sql.session_tables import OPERATION, OVERWRITE_MODE, SessionTables
from lakehouse.sql.statements import Delete, Insert, Merge, MergeClause, Name, Truncate, Update
from lakehouse.sql.tokens import Token, quoted, tokens_of
from lakehouse.sql.zones import CurrentTimes, require_no_zone, require_same_kinds, time_columns

_SUBQUERY = ("SELECT", "EXISTS")
_FEW_BYTES = 1 << 20
#: Groups of rows by key, with the number of stored rows and of rows that a condition names.
_KEYS = (
    "FROM (SELECT {columns}, 1 AS lakehouse_stored, 0 AS lakehouse_chosen FROM {stored} "
    "UNION ALL SELECT {columns}, 0 AS lakehouse_stored, 1 AS lakehouse_chosen FROM {chosen}) AS lakehouse_rows "
    "GROUP BY {columns}"
)


def insert(session: SessionTables, statement: Insert, parameters: Parameters) -> pa.Table | None:
    """Execute INSERT INTO | OVERWRITE."""
    if not session.belongs(statement.name):
        return None
    table = session.open(statement.name)
    frame = session.query(statement.query, parameters)
    if statement.replace_where:
        raise UserError("INSERT INTO ... REPLACE WHERE is not supported: DELETE the rows, then INSERT")
    targets = _targets(table.schema, session.engine.schema(frame), statement)
    rows = session.engine.conform(frame, targets)
    return outcome_rows(_written(session, table, statement, rows))


def update(session: SessionTables, statement: Update, parameters: Parameters) -> pa.Table | None:
    """Execute UPDATE."""
    if not session.belongs(statement.name):
        return None
    table = session.open(statement.name)
    assignments = _assignments(statement.assignments, statement.name, statement.alias, table)
    texts = {name: _expression(text, session, parameters) for name, text in assignments.items()}
    alias = _Alias(name=statement.name, alias=statement.alias, columns=table.schema.names)
    times = _times(session, table.schema.names)
    where = times.literal(_own(_expression(statement.where, session, parameters), alias, session))
    values = {name: times.literal(_own(text, alias, session)) for name, text in texts.items()}
    if not session.engine.is_utc:
        require_no_zone((where,), values, time_columns(table.schema), session.engine.dialect)
    if any(_has_subquery(text, session) for text in (where, *values.values())):
        raise UserError("UPDATE with a subquery is not supported: use MERGE INTO ... WHEN MATCHED THEN UPDATE SET ...")
    # `Any`: the method is checked by its own tests.
    target: Any = table
    return outcome_rows(target.update(values, where or None, spark=session.engine.session))


def delete(session: SessionTables, statement: Delete, parameters: Parameters) -> pa.Table | None:
    """Execute DELETE FROM; without a condition the rows of all partitions are deleted."""
    if not session.belongs(statement.name):
        return None
    table = session.open(statement.name)
    if not statement.where:
        return outcome_rows(_truncated(table, table.partitions()))
    where = _expression(statement.where, session, parameters)
    if not _has_subquery(where, session):
        own = _Alias(name=statement.name, alias=statement.alias, columns=table.schema.names)
        where = _times(session, table.schema.names).literal(where)
        if not session.engine.is_utc:
            require_no_zone((where,), {}, time_columns(table.schema), session.engine.dialect)
        return outcome_rows(table.delete_where(_own(where, own, session), spark=session.engine.session))
    # A generated key is stored in the meta column only.
    fields = (*(table.config.keys.record_key_fields or (META_COLUMNS[2],)), *table.config.keys.partition_fields)
    columns = dict.fromkeys(field.partition(".")[0] for field in fields)
    mark = session.engine.mark
    selected = ", ".join(quoted(column, mark) for column in columns)
    name = ".".join(quoted(part, mark) for part in statement.name)
    alias = f" AS {quoted(statement.alias, mark)}" if statement.alias else ""
    # The keys are read before the write, so it fails if another writer changes a partition in between.
    precondition = Precondition(timeline=table.timeline, marks={}, untouched=frozenset(table.partitions()))
    chosen = f"{name}{alias} WHERE {statement.where}"
    refused = "sum(lakehouse_chosen) BETWEEN 1 AND sum(lakehouse_stored) - 1"
    _require_deletable_keys(
        session,
        f"SELECT {selected} {_KEYS.format(columns=selected, stored=name, chosen=chosen)} HAVING {refused} LIMIT 1",
        parameters,
    )
    frame = session.query(f"SELECT {selected} FROM {chosen}", parameters)
    schema = table.schema.append(pa.field(META_COLUMNS[2], pa.string()))
    targets = [Target(field=schema.field(column), source=number) for number, column in enumerate(columns)]
    return outcome_rows(table.delete(session.engine.conform(frame, targets), precondition=precondition))


def _require_deletable_keys(session: SessionTables, query: str, parameters: Parameters) -> None:
    """Raise UserError if the query returns a key of several rows, of which a delete by key would delete others."""
    source = session.engine.source(session.query(query, parameters))
    stream = source if isinstance(source, pa.RecordBatchReader) else frame_batches(source, _FEW_BYTES)
    repeated = stream.read_all().to_pylist()
    if repeated:
        raise UserError(
            f"several rows have the key {repeated[0]}: DELETE with a subquery deletes rows by key, so it would delete "
            "other rows than the condition names. Replace their partition by INSERT OVERWRITE"
        )


def merge(session: SessionTables, statement: Merge, parameters: Parameters) -> pa.Table | None:
    """Execute MERGE INTO."""
    if not session.belongs(statement.name):
        return None
    table = session.open(statement.name)
    # DuckDB ends the rows of the source with its next query.
    is_utc = session.engine.is_utc
    mark = session.engine.mark
    alias = quoted(statement.source_alias, mark)
    named = f"{alias}({', '.join(quoted(name, mark) for name in statement.source_columns)})"
    columns = named if statement.source_columns else alias
    source = session.query(f"SELECT * FROM {statement.source} AS {columns}", parameters)
    if not is_utc:
        _require_no_zone_in_merge(session, statement, table.schema, session.engine.schema(source))
    target: Any = table
    names = (*table.schema.names, *session.engine.schema(source).names)
    times = CurrentTimes(dialect=session.engine.dialect, columns=names, is_utc=is_utc)
    statement = _at_one_time(statement, times)
    builder = target.merge(
        session.engine.source(source),
        _merge_text(statement.on, session, parameters, statement),
        source_alias=statement.source_alias,
        target_alias=statement.alias,
    )
    for clause in statement.clauses:
        builder = _clause(builder, clause, session, parameters, statement, table)
    return outcome_rows(builder.execute())


def _times(session: SessionTables, columns: Collection[str]) -> CurrentTimes:
    return CurrentTimes(dialect=session.engine.dialect, columns=columns, is_utc=session.engine.is_utc)


def _at_one_time(statement: Merge, times: CurrentTimes) -> Merge:
    """Return a MERGE with literals in place of the current time, which all its clauses share."""
    clauses = tuple(
        replace(
            clause,
            condition=times.literal(clause.condition),
            assignments=tuple((name, times.literal(text)) for name, text in clause.assignments),
        )
        for clause in statement.clauses
    )
    return replace(statement, on=times.literal(statement.on), clauses=clauses)


def _require_no_zone_in_merge(session: SessionTables, statement: Merge, target: pa.Schema, source: pa.Schema) -> None:
    times = time_columns(target, source)
    for clause in statement.clauses:
        values = {name.rpartition(".")[2]: text for name, text in clause.assignments}
        require_no_zone((statement.on, clause.condition), values, times, session.engine.dialect)
        if clause.action.endswith("_all"):
            require_same_kinds(target, source)


def truncate(session: SessionTables, statement: Truncate, _: Parameters) -> pa.Table | None:
    """Execute TRUNCATE TABLE for matching partitions or the whole table."""
    if not session.belongs(statement.name):
        return None
    table = session.open(statement.name)
    paths = matching_partitions(table, statement.partition) if statement.partition else table.partitions()
    if statement.partition and not paths:
        raise UserError(f"no partition of {table.name} has the values {_shown(statement.partition)}")
    return outcome_rows(_truncated(table, paths))


def matching_partitions(table: Table, values: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the paths of the partitions with some values; `__HIVE_DEFAULT_PARTITION__` is the value of null.

    Raises UserError for a column that is no partition column.
    """
    keys = table.config.keys
    wanted = {
        (field := _partition_field(name, keys.partition_fields)): _partition_text(table.schema, field, value)
        for name, value in values.items()
    }
    paths = []
    for path in table.partitions():
        stored = dict(zip(keys.partition_fields, parse_partition_path(path, keys), strict=True))
        if all(value is None or (stored[name] or DEFAULT_PARTITION) == value for name, value in wanted.items()):
            paths.append(path)
    return tuple(paths)


def outcome_rows(outcome: Committed | NothingToDo) -> pa.Table:
    """Return the result of a write as one row: affected rows, the instant, or the reason why there is none.

    For a commit, `reason` has the rows without effect. Whole partitions are removed without counting their rows.
    """
    names = ("num_affected_rows", "num_inserted_rows", "num_updated_rows", "num_deleted_rows")
    numbers: tuple[int | None, ...] = (0, 0, 0, 0)
    instant, reason = None, str(getattr(outcome, "reason", ""))
    if isinstance(outcome, Committed):
        totals = outcome.totals
        numbers = (outcome.rows, totals.inserts, totals.updates, totals.deletes)
        if outcome.metadata.operation == Operation.DELETE_PARTITION:
            numbers = (None, 0, 0, None)
        instant, reason = outcome.instant.requested, _without_effect(outcome)
    counts = {name: pa.array([number], pa.int64()) for name, number in zip(names, numbers, strict=True)}
    return pa.table({**counts, "instant": pa.array([instant], pa.string()), "reason": pa.array([reason], pa.string())})


def _without_effect(outcome: Committed) -> str:
    """Return the numbers of rows of a statement that changed nothing, with the reasons."""
    counts = (
        (outcome.ignored_updates, "update", "without effect: the ordering value is lower than the stored one"),
        (outcome.late_rows_dropped, "row", "dropped: older than a deleted row with the same key"),
        (outcome.duplicates_dropped, "row", "dropped: another row has the same key"),
    )
    return "; ".join(f"{count_text(number, noun)} {rest}" for number, noun, rest in counts if number)


def _truncated(table: Table, paths: Sequence[str]) -> Committed | NothingToDo:
    return table.delete_partitions(paths)


def _written(session: SessionTables, table: Table, statement: Insert, rows: Any) -> Committed | NothingToDo:
    if not statement.overwrite:
        writes = {"insert": table.insert, "upsert": table.upsert, "bulk_insert": table.bulk_insert}
        return writes[session.choice(OPERATION)](rows)
    fields = table.config.keys.partition_fields
    is_static = session.choice(OVERWRITE_MODE) == "static"
    if is_static and statement.partition and None in statement.partition.values():
        raise UserError(
            f"INSERT OVERWRITE with {OVERWRITE_MODE}=STATIC replaces the table or the partition of literals: give all "
            f"columns of PARTITION a literal, or SET {OVERWRITE_MODE} = DYNAMIC to replace the partitions of the rows"
        )
    if not fields or (is_static and not statement.partition):
        return table.insert_overwrite_table(rows)
    outcome = table.insert_overwrite(rows)
    values = {name: value for name, value in statement.partition.items() if value is not None}
    if isinstance(outcome, NothingToDo) and len(values) == len(fields):
        # A static partition is replaced even if the query returns no rows.
        paths = matching_partitions(table, values)
        return table.delete_partitions(paths) if paths else outcome
    return outcome


def _targets(schema: pa.Schema, source: pa.Schema, statement: Insert) -> list[Target]:
    """Return where each column of the table comes from; raise UserError if the numbers or names differ."""
    static = {_column(name, schema): value for name, value in statement.partition.items() if value is not None}
    order = _order(schema, source, statement, static)
    twice = next((name for name in order if order.count(name) > 1 or name in static), None)
    if twice is not None:
        raise UserError(f"INSERT: the column {twice} has two values")
    if len(order) != len(source):
        raise UserError(
            f"INSERT: the query returns {len(source)} columns ({', '.join(source.names)}), but {len(order)} are "
            f"needed: {', '.join(order)}. List the columns of the table after its name, or use BY NAME"
        )
    position = {name: number for number, name in enumerate(order)}
    required = [field.name for field in schema if not field.nullable and field.name not in {*position, *static}]
    if required:
        raise UserError(f"INSERT: the column {required[0]} is NOT NULL and has no value")
    return [Target(field=field, source=position.get(field.name), constant=static.get(field.name)) for field in schema]


def _order(schema: pa.Schema, source: pa.Schema, statement: Insert, static: Mapping[str, str | None]) -> list[str]:
    """Return the columns of the table for the columns of the query."""
    if statement.by_name or statement.columns:
        return [_column(name, schema) for name in (source.names if statement.by_name else statement.columns)]
    dynamic = [_column(name, schema) for name, value in statement.partition.items() if value is None]
    return [*(name for name in schema.names if name not in static and name not in dynamic), *dynamic]


def _column(name: str, schema: pa.Schema) -> str:
    matches = [column for column in schema.names if column.lower() == name.lower()]
    if name in matches:
        return name
    if len(matches) != 1:
        raise UserError(f"there is no column {name!r}.{nearest(name, schema.names)}")
    return str(matches[0])


def _partition_field(name: str, fields: Sequence[str]) -> str:
    match = next((field for field in fields if field.lower() == name.lower()), None)
    if match is None:
        raise UserError(f"{name!r} is not a partition column; partition columns are {', '.join(fields) or 'none'}")
    return match


def _partition_text(schema: pa.Schema, field: str, value: str | None) -> str | None:
    """Return a literal as in the path of a partition: an integer has no leading zeros."""
    is_integer = field in schema.names and pa.types.is_integer(schema.field(field).type)
    if value is None or not is_integer or not value.removeprefix("-").isdecimal():
        return value
    return str(int(value))


def _shown(values: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _assignments(pairs: Sequence[tuple[str, str]], name: Name, alias: str, table: Table) -> dict[str, str]:
    """Return expressions by column, without the qualifier of the table."""
    schema = table.schema
    # An alias hides the name of the table.
    qualifiers = [".".join(name), name[-1]] if alias in ("", name[-1]) else [alias]
    texts: dict[str, str] = {}
    for column, text in pairs:
        name_of_column = column
        for qualifier in qualifiers:
            is_qualified = column.lower().startswith(f"{qualifier.lower()}.")
            if is_qualified and column.partition(".")[0] not in schema.names:
                name_of_column = column[len(qualifier) + 1 :]
                break
        root, dot, path = name_of_column.partition(".")
        target = _column(root, schema) + (f".{path}" if dot else "")
        if target in texts:
            raise UserError(f"the column {target} is set twice")
        texts[target] = text
    return texts


# parameters: the clause, its statement, and how its expressions are evaluated
def _clause(
    builder: Any, clause: MergeClause, session: SessionTables, parameters: Parameters, statement: Merge, table: Table
) -> Any:
    predicate = _merge_text(clause.condition, session, parameters, statement) or None
    pairs = _assignments(clause.assignments, statement.name, statement.alias, table)
    updates = {name: _merge_text(text, session, parameters, statement) for name, text in pairs.items()}
    except_cols = list(clause.except_cols) or None
    match (clause.match, clause.action):
        case ("matched", "update"):
            return builder.when_matched_update(updates, predicate)
        case ("matched", "update_all"):
            return builder.when_matched_update_all(predicate, except_cols)
        case ("matched", "delete"):
            return builder.when_matched_delete(predicate)
        case ("not_matched", "insert"):
            return builder.when_not_matched_insert(updates, predicate)
        case ("not_matched", "insert_all"):
            return builder.when_not_matched_insert_all(predicate, except_cols)
        case ("not_matched_by_source", "update"):
            return builder.when_not_matched_by_source_update(updates, predicate)
        case ("not_matched_by_source", "delete"):
            return builder.when_not_matched_by_source_delete(predicate)
    raise UserError("UPDATE SET * needs a row of the source: it is not possible in WHEN NOT MATCHED BY SOURCE")


def _expression(text: str, session: SessionTables, parameters: Parameters) -> str:
    """Return an expression in the language of conditions, with literals in place of parameters.

    Strings and quoted identifiers of the engine's dialect are written as in that language.
    """
    edits: list[tuple[int, int, str]] = []
    tokens = tokens_of(text, session.engine.dialect) if text else ()
    for number, token in enumerate(tokens):
        following = tokens[number + 1] if number + 1 < len(tokens) else None
        if token.is_string or token.is_quoted:
            edits += _rewritten(text, token, following)
            continue
        if token.text == "?" and not token.is_string:
            raise UserError("a parameter `?` is not supported in this statement: use a named parameter, :name")
        if following is None:
            continue
        if token.text == ":" and following.start == token.end and following.is_name:
            edits.append((token.start, following.end, _value(following, parameters)))
        elif token.text == "{" and number + 2 < len(tokens) and tokens[number + 2].text == "}":
            if following.text not in parameters.objects:
                raise UserError(f"the statement has no parameter {following.text!r}")
            edits.append((token.start, tokens[number + 2].end, literal_text(parameters.objects[following.text])))
    for start, end, literal in reversed(edits):
        text = text[:start] + literal + text[end:]
    return text


def _merge_text(text: str, session: SessionTables, parameters: Parameters, statement: Merge) -> str:
    """Return an expression of MERGE in the language of conditions, without namespaces before the target's name."""
    expression = _expression(text, session, parameters)
    if statement.alias != statement.name[-1] or len(statement.name) == 1:
        return expression
    tokens, edits = tokens_of(expression, session.engine.dialect), []
    chain = [part for name in statement.name for part in (name.lower(), ".")]
    for number, token in enumerate(tokens):
        following = [part.text.lower() for part in tokens[number : number + len(chain)]]
        if token.is_name and following == chain and (not number or tokens[number - 1].text != "."):
            edits.append((token.start, tokens[number + len(chain) - 2].start))
    for start, end in reversed(edits):
        expression = expression[:start] + expression[end:]
    return expression


def _rewritten(text: str, token: Token, following: Token | None) -> list[tuple[int, int, str]]:
    """Return the edit of a string or a quoted identifier; adjacent strings are one string."""
    if token.is_quoted:
        if "." in token.text:
            raise UserError(
                f"`{token.text}` is one name with a dot, which no column can have; write "
                f"{'.'.join(quoted(part) for part in token.text.split('.'))} for a field of a struct"
            )
        new = quoted(token.text)
    elif following is not None and following.is_string and not text[token.end : following.start].strip():
        raise UserError(
            f"{text[token.start : following.end]}: two strings in a row are ambiguous, because dialects differ; write "
            "a quote in a string as \\' on Spark and '' in `lakehouse sql`, and join strings with ||"
        )
    else:
        new = literal_text(token.text)
    return [(token.start, token.end, new)]


def _value(name: Token, parameters: Parameters) -> str:
    values = parameters.values
    if not isinstance(values, Mapping) or name.text not in values:
        raise UserError(f"the statement has no value for the parameter :{name.text}")
    return literal_text(values[name.text])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alias:
    """The name of a table in a statement, its alias, which hides the name, and the columns of the table."""

    name: Name
    alias: str
    columns: Sequence[str]


def _own(text: str, table: _Alias, session: SessionTables) -> str:
    """Return an expression without the qualifiers of its own table: `o.id`, `orders.id` and `sales.orders.id`.

    Raises UserError for the name of a table with an alias.
    """
    if not text:
        return text
    tokens = tokens_of(text, session.engine.dialect)
    full = {tuple(part.lower() for part in table.name[start:]) for start in (0, -1)}
    qualifiers = {(table.alias.lower(),)} if table.alias else full
    hidden = full - qualifiers - {(column.lower(),) for column in table.columns}
    edits = []
    for number, token in enumerate(tokens):
        if not token.is_name or (number and tokens[number - 1].text == "."):
            continue
        for qualifier in (*qualifiers, *hidden):
            width = 2 * len(qualifier)
            chain = tokens[number : number + width]
            parts = tuple(one.text.lower() for one in chain[::2])
            if len(chain) == width and parts == qualifier and all(one.text == "." for one in chain[1::2]):
                if qualifier in hidden:
                    raise UserError(
                        f"{text[token.start : chain[-1].end]} in {text!r}: the table has the alias {table.alias}, "
                        f"which hides its name; write {table.alias}.column"
                    )
                edits.append((token.start, chain[-1].end))
                break
    for start, end in reversed(edits):
        text = text[:start] + text[end:]
    return text


def _has_subquery(text: str, session: SessionTables) -> bool:
    return bool(text) and any(token.has_word(*_SUBQUERY) for token in tokens_of(text, session.engine.dialect))
