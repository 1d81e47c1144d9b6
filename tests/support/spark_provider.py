"""An environment like Airflow's with the oldest release of Spark's provider that pyproject.toml allows."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROVIDER = "apache-airflow-providers-apache-spark"
_NO_INDEX = ("error sending request", "Failed to fetch", "dns error", "No solution found")


def provider_bounds() -> str:
    """Return the provider's requirement in the extra `airflow`, such as `>=6.3,<7`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (bounds,) = [text.removeprefix(PROVIDER) for text in extras["airflow"] if text.startswith(PROVIDER)]
    return str(bounds)


def oldest_provider_python() -> Path:
    """Return the Python of the environment, which stays in `build` for later runs; skip the test without uv."""
    pinned = (ROOT / "constraints-airflow.txt").read_text()
    others = re.sub(rf"^{PROVIDER}==.*\n", "", pinned, flags=re.MULTILINE)
    assert others != pinned, "the constraints pin the newest release"
    state = hashlib.sha256(f"{others}{provider_bounds()}{sys.version}".encode()).hexdigest()
    folder = ROOT / "build" / "oldest-spark-provider"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if ready.exists() and ready.read_text() == state:
        return python
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("missing: uv, which makes the environment of the oldest provider")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    requirements = folder.parent / "oldest-spark-provider.txt"
    requirements.write_text(others)
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", str(python)]
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
        [*install, "--requirement", str(requirements)],
        [*install, "--resolution", "lowest", f"{PROVIDER}{provider_bounds()}"],
    ):
        done = subprocess.run(
            command, env={"UV_SYSTEM_CERTS": "true", **os.environ}, capture_output=True, text=True, check=False
        )
        if done.returncode and any(sign in done.stderr for sign in _NO_INDEX):
            pytest.skip(f"missing: a package index that uv reaches: {done.stderr[-500:]}")
        assert done.returncode == 0, done.stderr[-3000:]
    ready.write_text(state)
    return python
