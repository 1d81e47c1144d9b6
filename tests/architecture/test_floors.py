"""Imports go downwards only, and the light and the pure rooms stay what they are."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import ROOT, Module, modules

HEAVY = ("pyspark", "pyarrow", "numpy", "pandas", "sqlalchemy", "fastavro", "obstore", "airflow")
PURE = ("lakehouse/model", *(f"lakehouse/core/{name}" for name in ("format", "rows", "index", "state", "planning")))
# What a DAG file or the plugin may import, so that parsing stays fast and never needs Spark's environment.
LIGHT = ("airflow", "lakehouse.errors", "lakehouse.model", "lakehouse.spec", "lakehouse_airflow")
LIGHT_PACKAGES = ("pendulum", "psutil", "yaml")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted name of every import below `tree`, wherever it hides."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_below(name: str, packages: tuple[str, ...]) -> bool:
    """Say whether `name` is one of `packages` or stands inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def is_light(name: str) -> bool:
    """Say whether the plugin and the DAG files may import `name`."""
    standard = name.partition(".")[0] in sys.stdlib_module_names
    # The package itself is a row of lazy doors; what stands behind them is judged by its own name.
    return standard or name == "lakehouse" or is_below(name, (*LIGHT, *LIGHT_PACKAGES))


def file_openers(module: Module) -> list[str]:
    """Name the calls in `module` that open a path."""
    verbs = {"read_bytes", "read_text", "write_bytes", "write_text"}
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    return [
        f"{module.path}:{call.lineno}"
        for call in calls
        if (isinstance(call.func, ast.Name) and call.func.id == "open")
        or (isinstance(call.func, ast.Attribute) and call.func.attr in verbs)
    ]


def test_every_module_imports_from_the_floors_below_it_only() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([linter, "--no-logo"], cwd=ROOT, capture_output=True, check=False, text=True)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"


def test_importing_the_light_rooms_loads_nothing_heavy() -> None:
    rooms = [
        m.path for m in modules("lakehouse") if m.within("lakehouse/model", "lakehouse/spec", "lakehouse/errors.py")
    ]
    names = ["lakehouse", *(path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in rooms)]
    script = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
print(sorted(set(sys.modules) & set({HEAVY!r})))
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True, text=True)
    assert run.stdout.strip() == "[]"


def test_the_plugin_and_the_dags_import_only_what_is_light() -> None:
    # Mergers run in Spark's environment; Airflow is told not to look at them.
    assert (ROOT / "dags" / ".airflowignore").read_text().split() == ["mergers/"]
    parsed = [m for m in modules("plugins", "dags") if not m.within("dags/mergers")]
    assert [f"{m.path}: {name}" for m in parsed for name in imported(m.tree) if not is_light(name)] == []


def test_pure_rooms_open_no_file() -> None:
    assert [found for module in modules("lakehouse") if module.within(*PURE) for found in file_openers(module)] == []


def test_a_hidden_heavy_import_and_a_hidden_open_are_found() -> None:
    module = Module.of("plugins/x.py", "import os\ndef f(p):\n    from lakehouse.spark import x\n    return open(p)\n")
    assert [name for name in imported(module.tree) if not is_light(name)] == ["lakehouse.spark.x"]
    assert file_openers(module) == ["plugins/x.py:4"]
