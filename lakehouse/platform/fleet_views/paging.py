"""One page of a list: offset and limit, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import UserError

MOST_ROWS = 200
#: More rows than any list contains; databases refuse numbers with more than 64 bits.
LARGEST_OFFSET = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """The rows of a page: `limit` rows from `offset` on."""

    offset: int = 0
    limit: int = 50

    def __post_init__(self) -> None:
        if not 0 <= self.offset <= LARGEST_OFFSET or not 1 <= self.limit <= MOST_ROWS:
            raise UserError(
                f"offset {self.offset} and limit {self.limit}: the offset is 0 to {LARGEST_OFFSET}, the limit 1 to "
                f"{MOST_ROWS}"
            )
