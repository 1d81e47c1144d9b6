"""Sources of fresh identifiers."""

from __future__ import annotations

import uuid
from typing import Protocol


class Ids(Protocol):
    """A source of fresh identifiers."""

    def uuid(self) -> str: ...


class RandomIds:
    """Random UUIDs (version 4)."""

    def uuid(self) -> str:
        """Return a fresh UUID as a string."""
        return str(uuid.uuid4())
