"""The columnar merge of log entries gives the same result as a reference merge of one entry at a time.

`ReferenceMerge` is a plain Python implementation of the format's merge rules (DATA-5.2 and DATA-5.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.rows.delta_merge import merge_entries
from lakehouse.core.rows.final_merge import inserted_rows, merge_base
from lakehouse.core.rows.log_entries import (
    COLUMNS,
    CONTROL,
    DEFAULT,
    DELETE,
    DELETED_RECORD,
    KEY,
    KIND,
    RECORD,
    ColumnSets,
    delete_entries,
    record_entries,
)
from lakehouse.model.merge import MergeMode, MergeRule, PartialMode
from tests.support.tables import examples

META = ("_hoodie_commit_time", "_hoodie_commit_seqno", KEY, "_hoodie_partition_path", "_hoodie_file_name")
MARKER = "__none__"
COMMIT, EVENT, CUSTOM = MergeMode.COMMIT_TIME_ORDERING, MergeMode.EVENT_TIME_ORDERING, MergeMode.CUSTOM
DATA = {
    "n": (pa.int64(), st.sampled_from([None, 0, 7])),
    "s": (pa.string(), st.sampled_from([None, "", "x", MARKER])),
    "b": (pa.binary(), st.sampled_from([None, b"x", MARKER.encode()])),
    "l": (pa.list_(pa.int32()), st.sampled_from([None, [], [1, None]])),
    "t": (pa.struct([("i", pa.int32())]), st.sampled_from([None, {"i": None}, {"i": 1}])),
}
ORDERED = {
    pa.int64(): [None, 0, -1, 5, 2**60 + 1, -(2**63)],
    pa.int32(): [None, 0, -1, 5],
    pa.string(): [None, "", "a", "é"],
    pa.float64(): [None, -0.0, 0.0, -1.5, 2.0, math.inf, math.nan],
    pa.decimal128(20, 2): [None, Decimal("0.00"), Decimal("-1.50"), Decimal("9.99")],
    pa.bool_(): [None, False, True],
    pa.date32(): [None, date(1969, 12, 31), date(2024, 2, 29)],
}


def adding(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Merge rows: return the newer row with the sum of both values of `n`."""
    total = pc.add(pc.fill_null(older.column("n"), 0), pc.fill_null(newer.column("n"), 0))
    return newer.set_column(newer.column_names.index("n"), "n", total)


@dataclass(frozen=True)
class Case:
    """A generated table: its merge rule, its schema and whether its data blocks may hold only some columns."""

    rule: MergeRule
    schema: pa.Schema
    partial_blocks: bool


@dataclass
class Version:
    """One log entry.

    Attributes:
        kind: RECORD, DELETE or DELETED_RECORD.
        row: Its values by column.
        order: Its ordering values in comparable form.
        provided: The columns that the entry has values for; None means all.
        default: Whether it is a delete without ordering value, or, with a merger, a record that follows a delete and
            replaces all older versions.
        block: The number of the log block that holds it.
    """

    kind: int
    row: dict[str, Any]
    order: tuple[Any, ...] = ()
    provided: frozenset[str] | None = None
    default: bool = False
    block: int = field(default=0, compare=False)

    @property
    def key(self) -> str:
        """The record key."""
        return str(self.row[KEY])


class ReferenceMerge:
    """The format's merge rules, applied to one entry at a time."""

    def __init__(self, case: Case) -> None:
        self.case, self.rule = case, case.rule

    def order_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Return the ordering values of a row as Python values that compare as in Java."""
        values = [row[name] for name in self.rule.ordering]
        if self.rule.by_parts:
            values = [None, None] if values[0] is None else [int(part) for part in values[0].split(".")]
        return tuple(self._comparable(value) for value in values)

    @staticmethod
    def _comparable(value: Any) -> tuple[Any, ...]:
        if value is None:
            return (0,)
        if isinstance(value, float):
            return (1, math.isnan(value), 0.0 if math.isnan(value) else value, math.copysign(1, value))
        return (1, value)

    def version(self, kind: int, row: dict[str, Any], provided: frozenset[str] | None = None) -> Version:
        """Return the entry of a row. A record becomes a delete if one of its columns marks it as deleted."""
        rule = self.rule
        if kind == RECORD and (
            row.get("_hoodie_is_deleted") is True
            or (rule.delete_field and row[rule.delete_field] == rule.delete_marker)
            or row.get("_hoodie_operation") in ("D", "-U")
        ):
            kind = DELETED_RECORD
        values = [row[name] for name in rule.ordering]
        is_int = len(values) == 1 and self.case.schema.field(rule.ordering[0]).type == pa.int32()
        missing = all(value is None for value in values) or (is_int and values == [0])
        if rule.mode is COMMIT:
            missing = True
        return Version(kind, row, self.order_of(row), provided, kind != RECORD and missing)

    def merge(self, older: Version, newer: Version) -> Version:
        """Merge two versions of one key."""
        both = older.kind == newer.kind == RECORD
        if both and self.rule.merger:
            return newer if newer.default else self._by_merger(older, newer)
        high, low = (newer, older) if self._newer_wins(older, newer) else (older, newer)
        if self.rule.merger and high is newer and newer.kind == RECORD:
            return replace(newer, default=True)
        return self._filled(high, low) if both else high

    def _newer_wins(self, older: Version, newer: Version) -> bool:
        if self.rule.mode is COMMIT:
            return True
        if newer.kind == DELETE:
            if older.default:
                return False
            return newer.default or not older.order > newer.order
        return newer.default or older.default or newer.order >= older.order

    def _filled(self, high: Version, low: Version) -> Version:
        row = {}
        for name, value in high.row.items():
            lacks = high.provided is not None and name not in high.provided
            filled = self.is_filled(name, value) and (low.provided is None or name in low.provided)
            row[name] = low.row[name] if name not in META and (lacks or filled) else value
        return replace(high, row=row, provided=self._union(high, low))

    def is_filled(self, name: str, value: Any) -> bool:
        """Return whether the merge rule replaces this value by that of the other version."""
        if self.rule.partial is PartialMode.IGNORE_DEFAULTS:
            return value is None
        kind = self.case.schema.field(name).type
        texts = {pa.string(): self.rule.unavailable, pa.binary(): self.rule.unavailable.encode()}
        return self.rule.partial is PartialMode.FILL_UNAVAILABLE and kind in texts and value == texts[kind]

    def _by_merger(self, older: Version, newer: Version) -> Version:
        row = {
            name: older.row[name] if newer.provided is not None and name not in newer.provided else value
            for name, value in newer.row.items()
        }
        row["n"] = (older.row["n"] or 0) + (row["n"] or 0)
        row.update({name: newer.row[name] for name in META})
        merged = self.version(RECORD, row, self._union(newer, older))
        return replace(merged, default=merged.default or older.default)

    @staticmethod
    def _union(one: Version, other: Version) -> frozenset[str] | None:
        return None if one.provided is None or other.provided is None else one.provided | other.provided

    def merge_entries(self, versions: list[Version]) -> dict[str, Version]:
        """Merge all entries in order, and return the last version of each key."""
        state: dict[str, Version] = {}
        for version in versions:
            state[version.key] = self.merge(state[version.key], version) if version.key in state else version
        return state

    def merge_base(self, base: dict[str, Any], entry: Version) -> tuple[str, dict[str, Any] | None]:
        """Merge a base row with a log entry.

        Returns:
            "kept", "removed" or "replaced", and the new row if the base row is replaced.
        """
        stored, entry = Version(RECORD, base, self.order_of(base)), replace(entry, order=self.order_of(entry.row))
        result = self.merge(stored, entry)
        if result.kind != RECORD:
            return "removed", None
        both_records = entry.kind == RECORD
        survives = not (self._newer_wins(stored, entry) or (self.rule.merger and both_records))
        if survives and (not both_records or not self._gained(base, entry)):
            return "kept", None
        return "replaced", result.row

    def _gained(self, base: dict[str, Any], entry: Version) -> bool:
        return any(
            self.is_filled(name, value) and not self.is_filled(name, entry.row[name])
            for name, value in base.items()
            if name not in META and (entry.provided is None or name in entry.provided)
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a merge rule and a schema with the columns that it needs."""
    columns: dict[str, pa.DataType] = {
        **dict.fromkeys(META, pa.string()),
        **{name: kind for name, (kind, _) in DATA.items()},
    }
    mode = draw(st.sampled_from([COMMIT, EVENT, EVENT, CUSTOM]))
    by_parts = draw(st.integers(0, 9)) == 0
    ordering = () if mode is COMMIT else ("o",) if by_parts else tuple("op"[: draw(st.integers(0, 2))])
    for name in ordering:
        columns[name] = pa.string() if by_parts else draw(st.sampled_from([pa.int32(), *ORDERED]))
    rule = MergeRule(mode=mode, ordering=ordering, by_parts=by_parts and bool(ordering), unavailable=MARKER)
    if mode is CUSTOM:
        rule = replace(rule, merger=f"{__name__}:adding", merger_allowed=True)
    else:
        rule = replace(rule, partial=draw(st.sampled_from(PartialMode)))
    if draw(st.booleans()):
        columns["_hoodie_is_deleted"] = pa.bool_()
    if draw(st.booleans()):
        columns["c"] = pa.string()
        rule = replace(rule, delete_field="c", delete_marker="d")
    if draw(st.booleans()):
        columns["_hoodie_operation"] = pa.string()
    return Case(rule, pa.schema(list(columns.items())), draw(st.booleans()))


@st.composite
def rows(draw: st.DrawFn, case: Case, number: int) -> dict[str, Any]:
    """Draw a row with one of two keys."""
    row: dict[str, Any] = dict.fromkeys(META, f"v{number}")
    row["_hoodie_commit_seqno"] = draw(st.sampled_from([None, MARKER, f"v{number}"]))
    row[KEY] = draw(st.sampled_from("aab"))
    for name in case.schema.names[len(META) :]:
        if name in DATA:
            row[name] = draw(DATA[name][1])
        elif name == "_hoodie_is_deleted":
            row[name] = draw(st.sampled_from([None, False, False, True]))
        elif name == "_hoodie_operation":
            row[name] = draw(st.sampled_from([None, "I", "U", "U", "-U", "D"]))
        elif name == "c":
            row[name] = draw(st.sampled_from([None, "u", "u", "d"]))
        elif case.rule.by_parts:
            row[name] = draw(st.sampled_from([None, "1.9", "1.10", "2.1", "10.0"]))
        else:
            row[name] = draw(st.sampled_from(ORDERED[case.schema.field(name).type]))
    return row


@st.composite
def histories(draw: st.DrawFn, case: Case, start: int = 0) -> list[Version]:
    """Draw log entries in commit order, in blocks of full rows, of rows with some columns, or of deletes."""
    reference, made = ReferenceMerge(case), []
    for block in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from([RECORD, RECORD, DELETE]))
        provided = None
        if kind == RECORD and case.partial_blocks and draw(st.booleans()):
            free = [name for name in case.schema.names if name not in META]
            provided = frozenset((*META, *draw(st.sets(st.sampled_from(free)))))
        for _ in range(draw(st.integers(1, 4))):
            row = draw(rows(case, start + len(made)))
            if kind == DELETE:
                kept = {KEY, *case.rule.ordering}
                row = {name: value if name in kept else None for name, value in row.items()}
            elif provided is not None:
                row = {name: value if name in provided else None for name, value in row.items()}
            made.append(replace(reference.version(kind, row, provided), block=block))
    return made


def table(entries: list[Version], case: Case, sets: ColumnSets) -> pa.Table:
    """Return the entries as an Arrow table, built block by block as a log reader does."""
    none = record_entries(case.schema.empty_table(), case.rule, table=case.schema)
    parts = [none]
    for block in sorted({version.block for version in entries}):
        versions = [version for version in entries if version.block == block]
        columns = pa.Table.from_pylist([version.row for version in versions], schema=case.schema)
        if versions[0].kind == DELETE:
            ordering = [columns.column(name).combine_chunks() for name in case.rule.ordering]
            default = np.array([version.default for version in versions])
            keys = columns.column(KEY).combine_chunks()
            parts.append(delete_entries(keys, ordering, default, case.schema, case.rule))
        else:
            number = sets.number(versions[0].provided)
            parts.append(record_entries(columns, case.rule, number, table=case.schema))
    return pa.concat_tables(parts)


def seen(row: dict[str, Any]) -> str:
    """Return a row as text. Text compares equal for NaN, which is not equal to itself."""
    return repr(sorted(row.items()))


def state_of(entries: pa.Table, sets: ColumnSets) -> dict[str, str]:
    """Return the merged entries as text by key. All deletes without ordering value have the same text."""
    state = {}
    for row in entries.to_pylist():
        kind, default, columns = row.pop(KIND), row.pop(DEFAULT), row.pop(COLUMNS)
        assert row[KEY] not in state, "the merge returned two entries for one key"
        state[row[KEY]] = text_of(kind, default, sets.sets[columns], row)
    return state


def reference_state(versions: dict[str, Version], case: Case) -> dict[str, str]:
    """Return the state of the reference merge in the form of `state_of`."""
    state = {}
    for key, version in versions.items():
        row = pa.Table.from_pylist([version.row], schema=case.schema).to_pylist()[0]
        state[key] = text_of(version.kind, version.default, version.provided, row)
    return state


def text_of(kind: int, default: bool, provided: frozenset[str] | None, row: dict[str, Any]) -> str:
    """Return an entry as text. All deletes without ordering value have the same text."""
    if default and kind != RECORD:
        return "deleted"
    return f"{kind} {'replacing ' if default else ''}{column_names(provided)} {seen(row)}"


def column_names(names: frozenset[str] | None) -> list[str] | None:
    """Return a set of columns as a sorted list; None means all columns."""
    return None if names is None else sorted(names)


@examples(300)
@given(data=st.data())
def test_merge_of_entries_equals_the_reference_merge(data: st.DataObject) -> None:
    case = data.draw(cases())
    history = data.draw(histories(case))
    sets = ColumnSets()
    merged = merge_entries(table(history, case, sets), case.rule, sets)
    assert state_of(merged, sets) == reference_state(ReferenceMerge(case).merge_entries(history), case)


@examples(300)
@given(data=st.data())
def test_merge_with_base_rows_equals_the_reference_merge(data: st.DataObject) -> None:
    case = data.draw(cases())
    history = data.draw(histories(case))
    sets, reference = ColumnSets(), ReferenceMerge(case)
    merged = merge_entries(table(history, case, sets), case.rule, sets)
    expected = reference.merge_entries(history)
    keys = [key for key in merged.column(KEY).to_pylist() if data.draw(st.booleans())]
    base = [
        {**data.draw(rows(case, 100)), KEY: key, "_hoodie_is_deleted": None, "_hoodie_operation": None} for key in keys
    ]
    base = [{name: row[name] for name in case.schema.names} for row in base]
    stored = pa.Table.from_pylist(base, schema=case.schema)
    if data.draw(st.booleans()):
        stored = stored.set_column(0, META[0], stored.column(0).dictionary_encode())
    matched = merged.filter(pc.is_in(merged.column(KEY), value_set=pa.array(keys, pa.string())))
    result = merge_base(stored, matched, case.rule, sets)
    outcome = [reference.merge_base(row, expected[row[KEY]]) for row in stored.to_pylist()]
    assert result.removed.tolist() == [what == "removed" for what, _ in outcome]
    assert result.replaced.tolist() == [what == "replaced" for what, _ in outcome]
    wanted = pa.Table.from_pylist([row for _, row in outcome if row is not None], schema=case.schema)
    assert list(map(seen, result.rows.to_pylist())) == list(map(seen, wanted.to_pylist()))
    assert result.rows.schema == stored.schema

    rest = merged.filter(pc.invert(pc.is_in(merged.column(KEY), value_set=pa.array(keys, pa.string()))))
    new = [expected[key] for key in rest.column(KEY).to_pylist()]
    wanted = pa.Table.from_pylist([version.row for version in new if version.kind == RECORD], schema=case.schema)
    assert list(map(seen, inserted_rows(rest, case.schema).to_pylist())) == list(map(seen, wanted.to_pylist()))


@examples(150)
@given(data=st.data())
def test_merged_entries_can_be_merged_with_later_entries(data: st.DataObject) -> None:
    case = data.draw(cases())
    # A null in a composite ordering value may be filled from the other row. A second merge would compare that value.
    if len(case.rule.ordering) > 1 and case.rule.partial is PartialMode.IGNORE_DEFAULTS:
        case = replace(case, rule=replace(case.rule, partial=PartialMode.NONE), partial_blocks=False)
    if len(case.rule.ordering) > 1:
        case = replace(case, partial_blocks=False)
    first, later = data.draw(histories(case)), data.draw(histories(case, 50))
    sets = ColumnSets()
    one, other = table(first, case, sets), table(later, case, sets)
    at_once = state_of(merge_entries(pa.concat_tables([one, other]), case.rule, sets), sets)
    in_steps = state_of(
        merge_entries(pa.concat_tables([merge_entries(one, case.rule, sets), other]), case.rule, sets), sets
    )
    assert at_once == in_steps


@examples(150)
@given(data=st.data())
def test_later_entries_can_be_merged_first_under_rules_that_allow_it(data: st.DataObject) -> None:
    case = data.draw(cases())
    rule = replace(case.rule, partial=PartialMode.NONE, merger=None, mode=COMMIT if case.rule.mode is COMMIT else EVENT)
    case = replace(case, rule=rule, partial_blocks=False)
    first, later = data.draw(histories(case)), data.draw(histories(case, 50))
    if case.rule.mode is EVENT:
        first, later = ([version for version in part if not version.default] for part in (first, later))
    sets = ColumnSets()
    one, other = table(first, case, sets), table(later, case, sets)
    at_once = state_of(merge_entries(pa.concat_tables([one, other]), case.rule, sets), sets)
    apart = state_of(
        merge_entries(pa.concat_tables([one, merge_entries(other, case.rule, sets)]), case.rule, sets), sets
    )
    assert at_once == apart


@examples(50)
@given(data=st.data())
def test_merge_result_does_not_depend_on_chunks_of_the_entries(data: st.DataObject) -> None:
    case = data.draw(cases())
    history = data.draw(histories(case))
    sets = ColumnSets()
    entries = table(history, case, sets)
    merged = merge_entries(entries, case.rule, sets)
    assert merged.schema == entries.schema == pa.schema([*case.schema, *CONTROL])
    assert state_of(merge_entries(entries.combine_chunks(), case.rule, sets), sets) == state_of(merged, sets)
