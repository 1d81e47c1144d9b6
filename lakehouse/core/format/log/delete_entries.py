"""Find the entries of a delete block without a loop over entries (DATA-4.4).

Entries vary in size, so the start of an entry is only known after the previous entry. To read all entries together, the
reader tries *every* byte that can start an entry. It then keeps the chain in which each entry starts at the end of the
previous one:

    02 0e TXN-002 02 12 region=us 04 00 02 0e TXN-003 02 ...
    ^ entry ─────────────────────────── ^ entry ────────
                  ^ could start an entry, but is not one: no entry starts where it would end
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

#: Inside an array, branch 12 is a date (LocalDate), because arrays do not contain arrays.
LOCAL_DATE = 12
#: The maximum number of ordering columns that is read.
MOST_COLUMNS = 64
#: The first byte of an entry: the union branch of a non-null string, because keys are never null.
_TEXT = 2


class Wrapper(IntEnum):
    """Branches of the union for ordering values."""

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
#: How the value of a wrapper is encoded, by the number of the wrapper.
_IS_VARINT = np.array([wrapper in _VARINTS for wrapper in Wrapper])
_IS_TEXT = np.array([wrapper in _TEXTS for wrapper in Wrapper])
_FIXED_BYTES = np.array([_FIXED.get(wrapper, 0) for wrapper in Wrapper])


@dataclass(slots=True)
class Entries:
    """Entries as parallel arrays with one item per entry. All positions are positions in the window.

    `start` is the start of the entry, `key` and `partition` the starts of their strings. A length is -1 for null.
    `wrapper` is the branch of the union, `value` the start of its value. `after` is the end of the entry, or 0 if the
    bytes are not an entry.
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
        """Read an entry at each start, even if the bytes there are not an entry; `stop` is the end of the content."""
        cursor = Cursor(window, starts, stop)
        key, key_length = cursor.optional_text()
        # About half of the starts are not entries, and the key already excludes almost all of them.
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
        """Return the entries with these indexes or flags."""
        return Entries(*(getattr(self, name)[which] for name in self.__slots__))


class Cursor:
    """One position per entry, which each read moves to the next field.

    `is_sound` is false for entries whose bytes are invalid; their positions do not move any more.
    """

    def __init__(self, window: Window, positions: I64, stop: int) -> None:
        self._window = window
        self._stop = stop
        self.position = positions.copy()
        self.is_sound: Flags = positions < stop

    def varint(self) -> I64:
        """Read an integer at each position."""
        values, sizes = self._window.varints_at(self.position)
        self._move(sizes, self.is_sound & (sizes > 0))
        return values

    def optional_text(self) -> tuple[I64, I64]:
        """Read a [null, string] at each position; return the starts and lengths of the strings, -1 for null."""
        branch = self.varint()
        self.is_sound &= (branch == 0) | (branch == 1)
        return self._text(branch == 1)

    def skip_value(self, wrapper: I64) -> None:
        """Skip the ordering value at each position; `wrapper` contains the union branch of each value."""
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
        """Read an array at each position, all of which must be arrays.

        Returns flags for the arrays that have `columns` values, and for each column the wrappers and positions of the
        values. Wrappers and positions are only valid for the arrays with the flag.
        """
        fits = self._array_counts(np.ones(len(self.position), bool)) == columns
        items = []
        for _ in range(columns):
            index = np.where(fits, self._varint_where(fits), Wrapper.NULL)
            items.append((index, self.position.copy()))
            self._skip_scalar(np.where(index == LOCAL_DATE, Wrapper.INT, index))
        return fits, items

    def _array_counts(self, is_array: Flags) -> I64:
        """Read the start of the arrays and return their numbers of values.

        The number is 0 for a null array, which has no end marker, and for entries that are not arrays.
        """
        branch = self._varint_where(is_array)
        has_items = is_array & (branch == 1)
        self.is_sound &= ~is_array | (branch == 0) | (branch == 1)
        counts = np.where(has_items, self._varint_where(has_items), 0)
        # Hudi writes the values of all columns as one block of the array; other counts are not entries.
        self.is_sound &= (counts >= 0) & (counts <= MOST_COLUMNS)
        return np.where(self.is_sound, counts, 0)

    def _skip_scalar(self, wrapper: I64) -> None:
        self.is_sound &= (wrapper >= 0) & (wrapper < Wrapper.ARRAY)
        valid = np.where(self.is_sound, wrapper, Wrapper.NULL)
        self._varint_where(_IS_VARINT[valid])
        self._move(_FIXED_BYTES[valid], self.is_sound)
        self._text(_IS_TEXT[valid])

    def _text(self, here: Flags) -> tuple[I64, I64]:
        """Read a string for each entry with the flag `here`; return the starts and lengths, -1 for other entries."""
        if not here.any():
            return self.position.copy(), np.full(len(here), -1)
        lengths = np.where(here, self._varint_where(here), -1)
        begin = self.position.copy()
        self.is_sound &= ~here | (lengths >= 0)
        self._move(np.where(here, lengths, 0), self.is_sound)
        return begin, lengths

    def _varint_where(self, here: Flags) -> I64:
        """Read an integer for each entry with the flag `here`; the result is 0 for other entries."""
        if not here.any():
            return np.zeros(len(here), np.int64)
        if here.all():
            return self.varint()
        values, sizes = self._window.varints_at(self.position)
        self.is_sound &= ~here | (sizes > 0)
        self._move(np.where(here, sizes, 0), self.is_sound)
        return np.where(here, values, 0)

    def _move(self, by: I64, where: Flags) -> None:
        # Compare before the addition, because an invalid length near the maximum integer would overflow.
        self.is_sound = where & (by <= self._stop - self.position)
        self.position += np.where(self.is_sound, by, 0)


def find_entries(window: Window, stop: int) -> Entries:
    """Return the entries of the Avro array that starts at the window's first byte and ends at `stop`.

    Raises CorruptTableError if the content does not have as many adjacent entries as the array declares, or has other
    bytes after them.
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
            # A negative count is followed by the size of the block in bytes, which is only needed to skip it.
            count, (_, position) = -count, _number(window, position, stop)
        run = chain.follow(position, count)
        runs.append(run)
        position = int(entries.after[run[-1]])
    if position != stop:
        raise CorruptTableError(
            f"the entries of a delete block end {stop - position} bytes before the end of its content"
        )
    return entries.take(np.concatenate([np.zeros(0, np.int64), *runs]))


class _Chain:
    """Possible entries, and for each of them the entry that starts at its end."""

    def __init__(self, window: Window, entries: Entries, stop: int) -> None:
        self._start, self._after = entries.start, entries.after
        following = np.searchsorted(self._start, self._after)
        goes_on = following < len(self._start)
        goes_on[goes_on] = self._start[following[goes_on]] == self._after[goes_on]
        self._following = np.where(goes_on, following, -1)
        # This excludes almost all false entries: neither another entry nor the end of an Avro array block follows them.
        self._likely = np.flatnonzero(goes_on | (window.data[np.minimum(self._after, stop)] == 0))
        self._steps: list[int] | None = None

    def follow(self, position: int, count: int) -> I64:
        """Return the indexes of `count` adjacent entries, of which the first starts at `position`."""
        first = int(np.searchsorted(self._start, position))
        if first == len(self._start) or self._start[first] != position or count > len(self._start):
            raise CorruptTableError(f"a delete block does not have {count} entries at byte {position - MARGIN}")
        at = int(np.searchsorted(self._likely, first))
        run = self._likely[at : at + count]
        if len(run) == count and run[0] == first and np.array_equal(self._following[run[:-1]], run[1:]):
            return run
        return self._step_by_step(first, count)

    def _step_by_step(self, first: int, count: int) -> I64:
        """Follow the chain entry by entry; needed if the fast path met a false entry."""
        if self._steps is None:
            self._steps = self._following.tolist()
        steps, run = self._steps, [first]
        for _ in range(count - 1):
            run.append(steps[run[-1]])
            if run[-1] < 0:
                raise CorruptTableError(f"a delete block has {len(run) - 1} of {count} entries")
        return np.array(run, np.int64)


def _number(window: Window, position: int, stop: int) -> tuple[int, int]:
    """Return the integer at `position` and its end."""
    if position < stop:
        (value,), (size,) = window.varints_at(np.array([position]))
        if 0 < size <= stop - position:
            return int(value), int(position + size)
    raise CorruptTableError(f"a delete block ends inside its array, at byte {position - MARGIN}")
