"""One try of one task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of one task: three integers that no other try of the same write has."""

    partition: int
    stage: int
    number: int

    @property
    def token(self) -> str:
        """The write token of file names: `<partition>-<stage>-<attempt>`."""
        return f"{self.partition}-{self.stage}-{self.number}"
