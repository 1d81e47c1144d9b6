"""Where the material shared by all tests lies: real tables and artefacts of other writers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parents[2]


def shared_dir() -> Path:
    """Return the shared folder (`LAKEHOUSE_SHARED`, or `shared` beside the repository).

    Without it the test is skipped, or fails where CI=true: there it must not be missing.
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
    """Return the path of a fixture, `hudi_tables/<table>.zip` or `hudi_artifacts/<folder>`; it must exist."""
    path = shared_dir() / "fixtures" / name
    assert path.exists(), f"no fixture {path}"
    return path
