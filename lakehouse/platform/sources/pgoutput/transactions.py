"""The transactions that a snapshot of PostgreSQL sees."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import UserError

_EPOCH, _HALF = 1 << 32, 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSet:
    """Transactions that had ended when a snapshot was taken.

    Attributes:
        oldest: All transactions before this number had ended.
        next: The transactions from this number on had not begun.
        running: The transactions between both that had not ended.
    """

    oldest: int
    next: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> TransactionSet:
        """Return the set of a text of the type `pg_snapshot`, `10:20:11,15`; an empty text has no transactions."""
        if not text:
            return cls(oldest=0, next=0, running=frozenset())
        try:
            oldest, following, running = text.split(":")
            return cls(
                oldest=int(oldest),
                next=int(following),
                running=frozenset(int(number) for number in running.split(",") if number),
            )
        except ValueError as error:
            raise UserError(f"{text!r} is not a snapshot of PostgreSQL, such as 10:20:11,15") from error

    def has(self, number: int) -> bool:
        """Return whether the snapshot sees a transaction, given the lower 32 bits of its number.

        The log has no more: the whole number is the one that is nearest to the snapshot.
        """
        if not self.next:
            return False
        whole = self.next - self.next % _EPOCH + number
        if whole - self.next >= _HALF:
            whole -= _EPOCH
        elif self.next - whole > _HALF:
            whole += _EPOCH
        return whole < self.oldest or (whole < self.next and whole not in self.running)
