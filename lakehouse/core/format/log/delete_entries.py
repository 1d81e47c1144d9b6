"""Where the entries of a delete block lie (DATA-4.4).

Entries have no fixed size, and where one begins is known when the one before was read. To read them all at once, an
entry is read from *every* byte that may begin one. Those that begin where the one before ends are the real ones:

    02 0e TXN-002 02 12 region=us 04 00 02 0e TXN-003 02 ...
    ^ entry ─────────────────────────── ^ entry ────────
                  ^ looks like the start of an entry, but is none: what it would be ends where no entry begins
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lakehouse.core.format.avro.varints import MARGIN, Window
from lakehouse.errors import CorruptTableError

I64: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

#: Inside an array 12 stands for a date (LocalDate), for arrays hold no arrays.
LOCAL_DATE = 12
#: No table has more ordering columns.
MOST_COLUMNS = 64
#: The branch of a text that is not null, as every key is: the first byte of an entry.
_TEXT = 2


class Wrapper(IntEnum):
    """Branches of the union of ordering values."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7
    DATE = 8
    DECIMAL = 9
    TIME_MICROS = 10
    TIMESTAMP_MICROS = 11
    ARRAY = 12


_VARINTS = (Wrapper.INT, Wrapper.LONG, Wrapper.DATE, Wrapper.TIME_MICROS, Wrapper.TIMESTAMP_MICROS)
_TEXTS = (Wrapper.BYTES, Wrapper.STRING, Wrapper.DECIMAL)
_FIXED = {Wrapper.BOOLEAN: 1, Wrapper.FLOAT: 4, Wrapper.DOUBLE: 8}
#: What follows the number of a wrapper, by that number.
_IS_VARINT = np.array([wrapper in _VARINTS for wrapper in Wrapper])
_IS_TEXT = np.array([wrapper in _TEXTS for wrapper in Wrapper])
_FIXED_BYTES = np.array([_FIXED.get(wrapper, 0) for wrapper in Wrapper])


@dataclass(slots=True)
class Entries:
    """Entries read at many starts, by position in the window; lengths are -1 where a text is null.

    `wrapper` is the branch of the union, `value` where its value begins, `after` where the entry ends, or 0 if it
    cannot be one. Every field has one item per entry.
    """

    start: I64
    key: I64
    key_length: I64
    partition: I64
    partition_length: I64
    wrapper: I64
    value: I64
    after: I64

    @classmethod
    def read(cls, window: Window, starts: I64, stop: int) -> Entries:
        """Read entries at these starts, however senseless some are; `stop` is where the content ends."""
        cursor = Cursor(window, starts, stop)
        key, key_length = cursor.optional_text()
        # Half of the starts are no entries, and nearly all of those show it here.
        is_left = np.flatnonzero(cursor.is_sound & (window.data[cursor.position] <= _TEXT))
        starts, key, key_length = starts[is_left], key[is_left], key_length[is_left]
        cursor = Cursor(window, cursor.position[is_left], stop)
        partition, partition_length = cursor.optional_text()
        wrapper = cursor.varint()
        value = cursor.position.copy()
        cursor.skip_value(wrapper)
        after = np.where(cursor.is_sound, cursor.position, 0)
        return cls(starts, key, key_length, partition, partition_length, wrapper, value, after)

    def take(self, which: Any) -> Entries:
        """Return some of the entries."""
        return Entries(*(getattr(self, name)[which] for name in self.__slots__))


class Cursor:
    """One position per entry, moved over its fields; entries that make no sense stop moving and are not `is_sound`."""

    def __init__(self, window: Window, positions: I64, stop: int) -> None:
        self._window = window
        self._stop = stop
        self.position = positions.copy()
        self.is_sound: Flags = positions < stop

    def varint(self) -> I64:
        """Read an integer everywhere."""
        values, sizes = self._window.varints_at(self.position)
        self._move(sizes, self.is_sound & (sizes > 0))
        return values

    def optional_text(self) -> tuple[I64, I64]:
        """Read [null, string] everywhere; return where the texts begin, and their lengths, -1 for null."""
        branch = self.varint()
        self.is_sound &= (branch == 0) | (branch == 1)
        return self._text(branch == 1)

    def skip_value(self, wrapper: I64) -> None:
        """Pass by a value of each entry's wrapper."""
        is_array = wrapper == Wrapper.ARRAY
        self._skip_scalar(np.where(is_array, Wrapper.NULL, wrapper))
        if not is_array.any():
            return
        counts = self._array_counts(is_array)
        rest = counts.copy()
        while (rest > 0).any():
            index = np.where(rest > 0, self._varint_where(rest > 0), Wrapper.NULL)
            self._skip_scalar(np.where(index == LOCAL_DATE, Wrapper.INT, index))
            rest = np.where(self.is_sound, rest - 1, 0)
        has_end = counts > 0
        self.is_sound &= ~has_end | (self._varint_where(has_end) == 0)

    def array_items(self, columns: int) -> tuple[Flags, list[tuple[I64, I64]]]:
        """Read arrays everywhere: which have `columns` values, and of these per column the wrappers and positions.

        Items of the other arrays mean nothing. For positions that were found to hold arrays.
        """
        fits = self._array_counts(np.ones(len(self.position), bool)) == columns
        items = []
        for _ in range(columns):
            index = np.where(fits, self._varint_where(fits), Wrapper.NULL)
            items.append((index, self.position.copy()))
            self._skip_scalar(np.where(index == LOCAL_DATE, Wrapper.INT, index))
        return fits, items

    def _array_counts(self, is_array: Flags) -> I64:
        """Read the heads of arrays: how many values follow (0 if there is no array, and no end mark after it)."""
        branch = self._varint_where(is_array)
        has_items = is_array & (branch == 1)
        self.is_sound &= ~is_array | (branch == 0) | (branch == 1)
        counts = np.where(has_items, self._varint_where(has_items), 0)
        # Hudi writes the columns of a table as one run; other runs are no entries, but bytes that look like one.
        self.is_sound &= (counts >= 0) & (counts <= MOST_COLUMNS)
        return np.where(self.is_sound, counts, 0)

    def _skip_scalar(self, wrapper: I64) -> None:
        self.is_sound &= (wrapper >= 0) & (wrapper < Wrapper.ARRAY)
        known = np.where(self.is_sound, wrapper, Wrapper.NULL)
        self._varint_where(_IS_VARINT[known])
        self._move(_FIXED_BYTES[known], self.is_sound)
        self._text(_IS_TEXT[known])

    def _text(self, here: Flags) -> tuple[I64, I64]:
        """Read a text where `here` is set; return where the texts begin, and their lengths, -1 elsewhere."""
        if not here.any():
            return self.position.copy(), np.full(len(here), -1)
        lengths = np.where(here, self._varint_where(here), -1)
        begin = self.position.copy()
        self.is_sound &= ~here | (lengths >= 0)
        self._move(np.where(here, lengths, 0), self.is_sound)
        return begin, lengths

    def _varint_where(self, here: Flags) -> I64:
        """Read an integer where `here` is set; 0 elsewhere."""
        if not here.any():
            return np.zeros(len(here), np.int64)
        if here.all():
            return self.varint()
        values, sizes = self._window.varints_at(self.position)
        self.is_sound &= ~here | (sizes > 0)
        self._move(np.where(here, sizes, 0), self.is_sound)
        return np.where(here, values, 0)

    def _move(self, by: I64, where: Flags) -> None:
        # Compared before it is added: a senseless length may be near the largest integer.
        self.is_sound = where & (by <= self._stop - self.position)
        self.position += np.where(self.is_sound, by, 0)


def find_entries(window: Window, stop: int) -> Entries:
    """Return the entries of the Avro array that begins in front of the window's first byte and ends at `stop`.

    Raises CorruptTableError if there is no chain of as many entries as the array says, up to its very end.
    """
    starts = np.flatnonzero(window.data[MARGIN:stop] == _TEXT) + MARGIN
    entries = Entries.read(window, starts, stop)
    entries = entries.take(np.flatnonzero(entries.after))
    chain = _Chain(window, entries, stop)
    position = MARGIN
    runs = []
    while True:
        count, position = _number(window, position, stop)
        if count == 0:
            break
        if count < 0:
            # The bytes that the run takes follow; only who wants to skip it needs them.
            count, (_, position) = -count, _number(window, position, stop)
        run = chain.follow(position, count)
        runs.append(run)
        position = int(entries.after[run[-1]])
    if position != stop:
        raise CorruptTableError(f"the entries of a delete block end {stop - position} bytes before its content")
    return entries.take(np.concatenate([np.zeros(0, np.int64), *runs]))


class _Chain:
    """Entries that may be real, and which of them begins where another ends."""

    def __init__(self, window: Window, entries: Entries, stop: int) -> None:
        self._start, self._after = entries.start, entries.after
        following = np.searchsorted(self._start, self._after)
        goes_on = following < len(self._start)
        goes_on[goes_on] = self._start[following[goes_on]] == self._after[goes_on]
        self._following = np.where(goes_on, following, -1)
        # Nearly all that only look like entries end where neither an entry begins nor a run of the array ends.
        self._likely = np.flatnonzero(goes_on | (window.data[np.minimum(self._after, stop)] == 0))
        self._steps: list[int] | None = None

    def follow(self, position: int, count: int) -> I64:
        """Return the numbers of `count` entries, the first at `position`, each beginning where the one before ends."""
        first = int(np.searchsorted(self._start, position))
        if first == len(self._start) or self._start[first] != position or count > len(self._start):
            raise CorruptTableError(f"a delete block has no {count} entries at byte {position - MARGIN}")
        at = int(np.searchsorted(self._likely, first))
        run = self._likely[at : at + count]
        if len(run) == count and run[0] == first and np.array_equal(self._following[run[:-1]], run[1:]):
            return run
        return self._step_by_step(first, count)

    def _step_by_step(self, first: int, count: int) -> I64:
        """Follow the chain past what looks like entries, one by one."""
        if self._steps is None:
            self._steps = self._following.tolist()
        steps, run = self._steps, [first]
        for _ in range(count - 1):
            run.append(steps[run[-1]])
            if run[-1] < 0:
                raise CorruptTableError(f"a delete block has {len(run) - 1} of {count} entries")
        return np.array(run, np.int64)


def _number(window: Window, position: int, stop: int) -> tuple[int, int]:
    """Return the integer at `position`, and where it ends."""
    if position < stop:
        (value,), (size,) = window.varints_at(np.array([position]))
        if 0 < size <= stop - position:
            return int(value), int(position + size)
    raise CorruptTableError(f"a delete block ends inside its array, at byte {position - MARGIN}")
