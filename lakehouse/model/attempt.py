"""One try of one task."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of one task: three integers that no other try of the same write has.

    `first`: of the tries of this task, number `partition`, one at most says so. `announced`: the driver has named the
    files of this try before it began.
    """

    partition: int
    stage: int
    number: int
    first: bool = False
    announced: bool = False

    @property
    def token(self) -> str:
        """The write token of file names: `<partition>-<stage>-<attempt>`."""
        return f"{self.partition}-{self.stage}-{self.number}"

    @classmethod
    def planned(cls, task: int, stage: int = 0) -> Attempt:
        """Return the first try of a task as all know it beforehand, wherever and whenever it runs."""
        return cls(partition=task, stage=stage, number=0, first=True, announced=True)

    def as_planned(self, stage: int = 0) -> Attempt:
        """Return this try under the name that was planned for it, if it is the first; `stage` moves all others, too."""
        if self.first:
            return self.planned(self.partition, stage)
        return replace(self, stage=self.stage + stage)
