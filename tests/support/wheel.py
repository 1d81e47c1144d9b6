"""The wheel of the project, built in a copy of the sources and installed in an environment of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What setuptools reads.
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "lakehouse", "plugins")
_NO_INDEX = ("No matching distribution", "NewConnectionError", "ConnectTimeoutError", "ProxyError", "ReadTimeoutError")


def built_wheel(folder: Path) -> Path:
    """Build the wheel in `folder` and return its path; skip the test if pip reaches no package index."""
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, checkout / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and any(sign in done.stderr for sign in _NO_INDEX):
        pytest.skip("missing: a package index that pip reaches")
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = folder.glob("lakehouse_tables-*.whl")
    return wheel


def installed_wheel(folder: Path) -> Path:
    """Return the Python of a new environment with the wheel; other packages come from the environment of the tests."""
    wheel = built_wheel(folder)
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # An editable install of the project stays invisible: .pth files are only read in the environment's own folder.
    (packages / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return environment / "bin" / "python"
