"""The note that output is not complete."""

from __future__ import annotations

import sys


def note_of_more(shown: int, what: str, remedy: str, *, total: int | None = None) -> None:
    """Say on standard error that more values exist than were printed, and how to see them."""
    sys.stdout.flush()
    known = f"{total}" if total is not None else f"at least {shown + 1}"
    print(f"{shown} of {known} {what} shown; {remedy}", file=sys.stderr)
