"""Locate the shared folder: tables and files that other implementations wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parents[2]


def shared_dir() -> Path:
    """Return the shared folder (`LAKEHOUSE_SHARED`, or `shared` beside the repository).

    If the folder is missing, the test is skipped; with CI=true it fails.
    """
    configured = os.environ.get("LAKEHOUSE_SHARED")
    path = Path(configured) if configured else _REPOSITORY.parent / "shared"
    if not path.is_dir():
        reason = f"missing: shared folder {path}; set LAKEHOUSE_SHARED"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def fixtures(name: str) -> Path:
    """Return the path of an existing fixture: `hudi_tables/<table>.zip` or `hudi_artifacts/<folder>`."""
    path = shared_dir() / "fixtures" / name
    assert path.exists(), f"no fixture {path}"
    return path


def fixture_names(folder: str, pattern: str) -> list[str]:
    """Return the names of files in a folder of fixtures; skip the calling test module if there is no shared folder."""
    try:
        return sorted(path.name for path in fixtures(folder).glob(pattern))
    except pytest.skip.Exception as missing:
        pytest.skip(str(missing), allow_module_level=True)
