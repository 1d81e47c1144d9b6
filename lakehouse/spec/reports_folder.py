"""The folder in which jobs write their reports: readable by this user only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lakehouse.spec.private_files import own_folder, private_folder

REPORTS = "LAKEHOUSE_REPORTS"


def reports_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that `LAKEHOUSE_REPORTS` names, or a folder of this user below the temporary directory."""
    named = environ.get(REPORTS)
    return Path(named).absolute() if named else Path(tempfile.gettempdir()) / f"lakehouse-reports-{os.geteuid()}"


def make_reports_folder(environ: Mapping[str, str], *parts: str) -> Path:
    """Create the folder, and the nested folders `parts` in it, for this user only; return the innermost one.

    Raises UserError if a folder belongs to another user or cannot be created.
    """
    root = reports_folder(environ)
    if not environ.get(REPORTS):
        # The name is predictable, and every user can create folders in the parent.
        own_folder(root)
    return private_folder(root, *parts)
