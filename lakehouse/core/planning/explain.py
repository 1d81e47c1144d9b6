"""What each step of a plan left: the partitions, file slices, files and bytes that a read opens, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lakehouse.core.state.file_slices import FileSlices
from lakehouse.model.display import Readable, Shown, count_text, sentence, size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep(Readable):
    """One step of a plan, and what remains after it.

    Attributes:
        name: The name of the step, such as `partitions` or `column_stats`.
        reason: What the step did, or why it could not exclude anything.
        partitions: The number of partitions that remain; None before they are known.
        slices: The number of file slices that remain; None before the files are listed.
        files: The number of base and log files that remain.
        bytes: Their size.
    """

    name: str
    reason: str
    partitions: int | None = None
    slices: int | None = None
    files: int | None = None
    bytes: int | None = None

    @classmethod
    def of(cls, name: str, reason: str, slices: FileSlices) -> PlanStep:
        """Return a step after which these slices remain."""
        return cls(
            name=name,
            reason=reason,
            partitions=slices.partition_count,
            slices=len(slices),
            files=slices.files.num_rows,
            bytes=slices.bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanExplanation(Readable):
    """The steps of a planned read, in order. `print` shows them as text, a notebook shows a table."""

    steps: tuple[PlanStep, ...]

    def __iter__(self) -> Iterator[PlanStep]:
        return iter(self.steps)

    def step(self, name: str) -> PlanStep:
        """Return the step of this name; raise KeyError if the plan has none."""
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    def __str__(self) -> str:
        heads = ("step", "partitions", "slices", "files", "bytes")
        rows = [heads, *((s.name, *_numbers(s)) for s in self.steps)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
        texts = [
            "  ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            )
            for row in rows
        ]
        reasons = ["reason", *(step.reason for step in self.steps)]
        return "\n".join(f"{text}  {reason}" for text, reason in zip(texts, reasons, strict=True))

    def _shown(self) -> Shown:
        last = self.steps[-1] if self.steps else PlanStep(name="", reason="")
        line = sentence(
            f"planned in {count_text(len(self.steps), 'step')}",
            count_text(last.partitions or 0, "partition"),
            count_text(last.files or 0, "file"),
            size_text(last.bytes or 0),
        )
        rows: list[dict[str, Any]] = [
            {
                "step": s.name,
                "partitions": s.partitions,
                "slices": s.slices,
                "files": s.files,
                "bytes": s.bytes,
                "reason": s.reason,
            }
            for s in self.steps
        ]
        return Shown(line, {}, rows)


def _numbers(step: PlanStep) -> tuple[str, ...]:
    counts = (step.partitions, step.slices, step.files)
    size = "-" if step.bytes is None else size_text(step.bytes)
    return (*("-" if count is None else f"{count:,}" for count in counts), size)
