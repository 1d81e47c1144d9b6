"""Delta merge: merge all log entries of a record to one entry (DATA-5.2, step 1).

The merge is defined entry by entry, oldest first, and is not a sort. A delete without ordering value wins over all
older entries and loses to the next record, even if its ordering value is low.

    no partial updates     one vectorized step: per key, entries before the last such delete are ignored, and the
                           greatest (ordering value, position) of the others wins.
    partial updates        round k processes the k-th version of each key that has one. Per column, a round keeps only
                           the number of the row that its value comes from; values are read once, at the end.
    custom merger          the same rounds, on the rows themselves.

Keys with one version need no merge. With partial updates, log versions must not be merged with each other before an
older base row (`final_merge.fold_into_base`). A value that fills a column would otherwise count as new as the version
that it fills, and would win over the base row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakehouse.core.rows.custom_merger import merge_records
from lakehouse.core.rows.log_entries import (
    DEFAULT,
    DELETE,
    KEY,
    RECORD,
    ColumnSets,
    Control,
    with_control,
    without_control,
)
from lakehouse.core.rows.ordering import at_least, ordering_columns, ranks
from lakehouse.core.rows.partial_update import from_lower, gaps
from lakehouse.core.rows.record_pairs import both_records, merged_columns, newer_wins
from lakehouse.model.merge import MergeRule, PartialMode, require_runnable


def merge_entries(
    entries: pa.Table, rule: MergeRule, sets: ColumnSets, *, records: np.ndarray | None = None
) -> pa.Table:
    """Return one entry for each record key of `entries`, in any order.

    Args:
        entries: Entries of logs, oldest first.
        rule: How versions of a record are merged.
        sets: The sets of columns that partial rows provide. Unions of sets are added to it.
        records: The number of each entry's record (from 0, without gaps), if the key does not identify records.

    Raises:
        UnsupportedError: The rule is not supported.
        UserError: A custom merger fails.
    """
    require_runnable(rule)
    codes, distinct = _key_codes(entries.column(KEY)) if records is None else (records, int(records.max()) + 1)
    if distinct == entries.num_rows:
        return entries
    repeated = np.bincount(codes, minlength=distinct)[codes] > 1
    at = np.flatnonzero(repeated)
    control, codes = Control.of(entries).take(at), codes[at]
    if rule.merger is None and rule.partial is PartialMode.NONE and not control.columns.any():
        keep = ~repeated
        keep[at[_winners(codes, distinct, control, _ranks(entries, at, rule))]] = True
        return entries.filter(pa.array(keep))
    versions = entries.take(pa.array(at))
    if rule.merger is None:
        merged = _merge_partial(versions, rounds_of(codes), _ranks(entries, at, rule), rule, sets)
    else:
        merged = _merge_by_function(versions, rounds_of(codes), rule, sets)
    return pa.concat_tables([entries.filter(pa.array(~repeated)), merged])


def _key_codes(keys: pa.ChunkedArray) -> tuple[np.ndarray, int]:
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    # Combine the chunks, because otherwise each chunk would have its own dictionary, which must be unified.
    encoded = keys.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(), len(encoded.dictionary)


def _ranks(entries: pa.Table, at: np.ndarray, rule: MergeRule) -> np.ndarray | None:
    names = [name for name in rule.compared if name in entries.column_names]
    columns = ordering_columns(entries.select(names).take(pa.array(at)), rule) if names else None
    return None if columns is None else ranks(columns)


def _winners(codes: np.ndarray, distinct: int, control: Control, rank: np.ndarray | None) -> np.ndarray:
    """Return the position of the winning entry for each key. Positions ascend with time."""
    last = np.full(distinct, -1)
    if rank is None:
        last[codes] = np.arange(len(codes))
        return last[last >= 0]
    counts = _counting(codes, distinct, control) if control.default.any() else np.arange(len(codes))
    codes, rank = codes[counts], rank[counts]
    best = np.full(distinct, np.iinfo(np.int64).min)
    np.maximum.at(best, codes, rank)
    greatest = np.flatnonzero(rank == best[codes])
    last[codes[greatest]] = counts[greatest]
    return last[last >= 0]


def _counting(codes: np.ndarray, distinct: int, control: Control) -> np.ndarray:
    """Return the positions of the entries that a delete without ordering value does not remove.

    Entries of delete blocks do not replace such a delete, so they apply again only after the next record.
    """
    position = np.arange(len(codes))
    last = np.full(distinct, -1)
    at = np.flatnonzero(control.default)
    last[codes[at]] = at
    reset = last[codes]
    replacing = np.flatnonzero((position > reset) & (reset >= 0) & (control.kind != DELETE))
    # If a position is assigned several times, the last value remains. With descending order this is the first entry.
    start = last.copy()
    start[codes[replacing[::-1]]] = replacing[::-1]
    begins = start[codes]
    return np.flatnonzero(np.where(begins == reset, (reset < 0) | (position == reset), position >= begins))


@dataclass(frozen=True, slots=True)
class Rounds:
    """The versions of each key by time. Keys with many versions come first, so that a round is a prefix."""

    order: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return int(self.lengths[0])

    def versions(self, number: int) -> np.ndarray:
        """Return the positions of version `number` (from 0) of all keys that have it, in the order of the keys."""
        keys = int(np.searchsorted(-self.lengths, -number))
        positions: np.ndarray = self.order[self.starts[:keys] + number]
        return positions


def rounds_of(codes: np.ndarray) -> Rounds:
    """Return the versions of each key. `codes` contains the key numbers of the versions, sorted by time."""
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    lengths = np.diff(starts, append=len(codes))
    by_length = np.argsort(-lengths, kind="stable")
    return Rounds(order, starts[by_length], lengths[by_length])


@dataclass(frozen=True, slots=True)
class FoldedVersions:
    """The versions of each key, merged one after another, in the order of `Rounds.versions(0)`.

    Attributes:
        row: The position of the version that survives.
        source: By column with gaps, the position of the version that provides the value.
        columns: For each merged version, the number of the set of its provided columns.
    """

    row: np.ndarray
    source: dict[str, np.ndarray]
    columns: np.ndarray

    def column(self, versions: pa.Table, name: str) -> pa.ChunkedArray:
        """Return the merged values of a column."""
        return versions.column(name).take(pa.array(self.source.get(name, self.row)))


def fold_versions(
    versions: pa.Table, rounds: Rounds, rank: np.ndarray | None, rule: MergeRule, sets: ColumnSets
) -> FoldedVersions:
    """Merge the versions of each key, oldest first.

    Args:
        versions: Entries.
        rounds: Which entries are versions of one key.
        rank: The sort order of the entries by ordering value; None if the rule compares none.
        rule: How versions of a record are merged.
        sets: The sets of columns that partial rows provide. Unions of sets are added to it.
    """
    control = Control.of(versions)
    holes = gaps(versions, control.columns, rule, sets)
    row = rounds.versions(0).copy()
    source = {name: row.copy() for name in holes}
    columns = control.columns[row]
    for number in range(1, len(rounds)):
        new = rounds.versions(number)
        keys = slice(0, len(new))
        old = row[keys]
        later = np.ones(len(new), dtype=bool) if rank is None else rank[new] >= rank[old]
        newer, older = control.take(new), control.take(old)
        wins, both = newer_wins(rule, newer, older, later), both_records(newer, older)
        for name, hole in holes.items():
            had = source[name][keys]
            high, low = np.where(wins, new, had), np.where(wins, had, new)
            source[name][keys] = np.where(from_lower(hole.of(high), hole.of(low), both), low, high)
        provided = columns[keys]
        columns[keys] = merged_columns(
            np.where(wins, newer.columns, provided), np.where(wins, provided, newer.columns), both, sets
        )
        row[keys] = np.where(wins, new, old)
    return FoldedVersions(row, source, columns)


def _merge_partial(
    versions: pa.Table, rounds: Rounds, rank: np.ndarray | None, rule: MergeRule, sets: ColumnSets
) -> pa.Table:
    folded = fold_versions(versions, rounds, rank, rule, sets)
    data = without_control(versions.schema)
    survivors = Control.of(versions).take(folded.row)
    return with_control(
        pa.table([folded.column(versions, name) for name in data.names], schema=data),
        Control(kind=survivors.kind, default=survivors.default, columns=folded.columns),
    )


def _merge_by_function(versions: pa.Table, rounds: Rounds, rule: MergeRule, sets: ColumnSets) -> pa.Table:
    state = versions.take(pa.array(rounds.versions(0)))
    done = []
    for number in range(1, len(rounds)):
        newer = versions.take(pa.array(rounds.versions(number)))
        size = newer.num_rows
        done.append(state.slice(size))
        older = state.slice(0, size)
        ours, theirs = Control.of(newer), Control.of(older)
        later = at_least(ordering_columns(newer, rule), ordering_columns(older, rule), size)
        both = both_records(ours, theirs)
        wins = newer_wins(rule, ours, theirs, later)
        newer = _replacing(newer, ours, wins & (theirs.kind != RECORD))
        merged = merge_records(older.filter(pa.array(both)), newer.filter(pa.array(both)), rule, sets)
        place = np.arange(size) + np.where(wins, size, 0)
        place[both] = 2 * size + np.arange(merged.num_rows)
        state = pa.concat_tables([older, newer, merged]).take(pa.array(place))
    return pa.concat_tables([*done, state])


def _replacing(newer: pa.Table, control: Control, after: np.ndarray) -> pa.Table:
    """Mark the records `after` a delete as replacing all older versions.

    Otherwise the final merge would merge them with the deleted record of the base file.
    """
    default = control.default | (after & (control.kind == RECORD))
    return newer.set_column(newer.schema.get_field_index(DEFAULT), DEFAULT, pa.array(default))
