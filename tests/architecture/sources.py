"""Files and parsed modules of the project, for the architecture tests."""

from __future__ import annotations

import ast
import gc
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("lakehouse", "plugins", "dags", "demo")
EVERYTHING = (*CODE, "tests")
#: Packages whose names, small modules and complex functions are revised: rules have no exceptions in them.
REVISED = (
    *(f"lakehouse/core/{name}" for name in ("engine", "layout", "rows", "state", "storage", "system", "timeline")),
    *(f"lakehouse/core/files/{name}" for name in ("base", "log")),
    *(f"lakehouse/core/format/{name}" for name in ("avro", "log", "parquet", "timeline")),
    "lakehouse/model",
    "lakehouse/spark",
    "lakehouse/spec/sources",
)
#: The packages to which all other modules belong; the first that matches counts.
OTHERS = ("lakehouse/core", "lakehouse/platform", "lakehouse", "plugins", "dags", "demo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One Python file: its path relative to the root, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @classmethod
    def of(cls, path: str, text: str) -> Module:
        """Parse `text` as the module at `path`."""
        return cls(path=path, text=text, tree=ast.parse(text, filename=path))

    def within(self, *folders: str) -> bool:
        """Return whether the module is in one of `folders`, or is one of them."""
        return any(self.path == folder or self.path.startswith(f"{folder}/") for folder in folders)


def modules(*folders: str) -> Iterator[Module]:
    """Yield the Python modules below `folders`, sorted by path."""
    for folder in folders:
        yield from _parsed(folder)


@cache
def _parsed(folder: str) -> tuple[Module, ...]:
    # All tests of a process share the trees, and later collections of garbage do not visit them.
    gc.disable()
    try:
        paths = sorted((ROOT / folder).rglob("*.py"))
        return tuple(Module.of(p.relative_to(ROOT).as_posix(), p.read_text(encoding="utf-8")) for p in paths)
    finally:
        gc.freeze()
        gc.enable()


def package_of(path: str) -> str:
    """Return the package of REVISED or OTHERS that contains the module at `path`."""
    return next(package for package in (*REVISED, *OTHERS) if path.startswith(f"{package}/"))


def report_lower(numbers: Mapping[str, int], allowed: Mapping[str, int]) -> None:
    """Print the allowed numbers that can be lowered. A lower number is no error, so that branches can be merged."""
    for package, most in allowed.items():
        if numbers.get(package, 0) < most:
            print(f"{package}: lower the allowed number from {most} to {numbers.get(package, 0)}")


def tracked_files() -> tuple[str, ...]:
    """Return the tracked and existing paths; skip the test if there is no git checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("missing: a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return tuple(path for path in listed.split("\0") if path and (ROOT / path).is_file())
