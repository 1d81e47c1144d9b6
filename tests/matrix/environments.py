"""The environments of the matrix, below `.venvs/matrix`.

uv builds them, or pip on a machine without uv. An environment is reused if its pins and its Python did not change.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.matrix.cells import FOLDER, ROOT, Cell

PLACE = ROOT / ".venvs" / "matrix"
WHEELS = PLACE / "wheels"
#: uv trusts the certificates of the system, as pip does.
_UV = {"UV_SYSTEM_CERTS": "true"}
_READY = ".ready"


class MissingPythonError(Exception):
    """No interpreter of the version is on this machine."""


def environment_of(cell: Cell) -> Path:
    """Return the folder of the environment of the cell."""
    return PLACE / cell.name


def python_of(version: str) -> str:
    """Return an interpreter of a minor version: from the PATH, pyenv or uv.

    Raises:
        MissingPythonError: None of them has it.
    """
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(home.glob(f"versions/{version}.*/bin/python")))]
    if (uv := shutil.which("uv")) is not None:
        answer = _output([uv, "python", "find", "--no-python-downloads", version])
        candidates.append(answer.strip() or None)
    for candidate in candidates:
        # A shim of pyenv exists for versions that are not activated, and then fails.
        if candidate and _output([candidate, "-c", _VERSION]).strip() == version:
            return candidate
    raise MissingPythonError(f"no Python {version} on the PATH, in pyenv or in uv; `uv python install {version}`")


_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def build_wheel() -> Path:
    """Build the wheel that every environment installs. The sources stay as they are."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    WHEELS.mkdir(parents=True)
    # setuptools writes its metadata and a folder `build` beside the sources, so it gets a copy.
    copy = PLACE / "sources"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("lakehouse", "plugins"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    uv = shutil.which("uv")
    wheel = (
        [uv, "build", "--wheel", "-q", "-o"] if uv else [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w"]
    )
    _run([*wheel, str(WHEELS), str(copy)], PLACE / "wheel.log")
    return next(iter(WHEELS.glob("*.whl")))


def prepare(cell: Cell, wheel: Path, log: Path) -> Path:
    """Build the environment of the cell if it is not there or has other packages, and return its interpreter.

    Raises:
        MissingPythonError: The machine has no such Python.
        subprocess.CalledProcessError: The installation failed; `log` has the output.
    """
    place, pins = environment_of(cell), ROOT / cell.pins
    python = place / "bin" / "python"
    base = python_of(cell.python)
    print_of_pins = hashlib.sha256(f"{base}\n{pins.read_text(encoding='utf-8')}".encode()).hexdigest()
    ready = place / _READY
    if not ready.is_file() or ready.read_text(encoding="utf-8") != print_of_pins:
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        _create(base, place, log)
        _install(python, ["--no-deps", "-r", str(pins)], log)
        ready.write_text(print_of_pins, encoding="utf-8")
    if cell.part == "airflow":
        # The suite has its own entry points of the plugin: those of the wheel would load it twice.
        return python
    _install(python, ["--no-deps", "--force-reinstall", str(wheel)], log)
    if (uv := shutil.which("uv")) is not None:
        # The bounds of the wheel admit the pins.
        _run([uv, "pip", "check", "-q", "--python", str(python)], log)
    return python


def installed_versions(python: Path) -> dict[str, str]:
    """Return the versions of the packages in an environment by their normalized names."""
    script = (
        "import importlib.metadata as m, json, platform, re;"
        "print(json.dumps({'python': platform.python_version()} | "
        "{re.sub('[-_.]+', '-', d.metadata['Name']).lower(): d.version for d in m.distributions()}))"
    )
    versions: dict[str, str] = json.loads(_output([str(python), "-c", script]) or "{}")
    return versions


def sources_print(cell: Cell) -> str:
    """Return a hash of all files that decide the result of a cell, so that an older result is not reused."""
    digest = hashlib.sha256()
    folders = ("lakehouse", "plugins", "dags", "tests/matrix", "tests/support")
    paths = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file() and _counts(path)]
    more = [ROOT / name for name in (cell.pins, "pyproject.toml", "tests/conftest.py")]
    for path in sorted([*paths, *more]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _counts(path: Path) -> bool:
    is_result = path.parent == FOLDER and path.suffix == ".json"
    is_pins = path.parent == FOLDER and path.suffix == ".txt"
    return "__pycache__" not in path.parts and not is_result and not is_pins


def _create(base: str, place: Path, log: Path) -> None:
    uv = shutil.which("uv")
    _run([uv, "venv", "-q", "--python", base, str(place)] if uv else [base, "-m", "venv", str(place)], log)


def _install(python: Path, arguments: list[str], log: Path) -> None:
    uv = shutil.which("uv")
    if uv is not None:
        _run([uv, "pip", "install", "-q", "--python", str(python), *arguments], log)
    else:
        _run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments], log)


def _run(command: list[str], log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as output:
        output.write(f"$ {' '.join(command)}\n")
        output.flush()
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=True, env={**_UV, **os.environ})


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""
