"""The attempt of a write task, and the write token that it gives to file names."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of one write task; its three numbers are unique among the attempts of a write.

    Attributes:
        partition: The number of the task.
        stage: The number of the Spark stage.
        number: The number of the attempt.
        first: Whether this is the first attempt of its task; at most one attempt of each task is the first one.
        announced: Whether the driver recorded the file names of this attempt before it began.
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
        """Return the first attempt of a task; its file names can be computed before it runs."""
        return cls(partition=task, stage=stage, number=0, first=True, announced=True)

    def as_planned(self, stage: int = 0) -> Attempt:
        """Return the planned attempt if this is the first attempt; `stage` is added to the stage of all others."""
        if self.first:
            return self.planned(self.partition, stage)
        return replace(self, stage=self.stage + stage)
