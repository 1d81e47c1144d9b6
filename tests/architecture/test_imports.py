"""Rules on imports: layers, light packages, and pure packages without I/O."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import ROOT, Module, modules

MODULE_NAME = re.compile(r"lakehouse(?:\.[a-z_0-9]+)+")
HEAVY = ("pyspark", "pyarrow", "numpy", "pandas", "sqlalchemy", "fastavro", "obstore", "airflow")
PURE = ("lakehouse/model", *(f"lakehouse/core/{name}" for name in ("format", "rows", "index", "state", "planning")))
# Allowed imports of DAG files and the plugin. Parsing must be fast and must not need the Spark environment.
LIGHT = ("airflow", "lakehouse.errors", "lakehouse.model", "lakehouse.spec", "lakehouse_airflow")
LIGHT_PACKAGES = ("pendulum", "psutil", "yaml")
# Only the API server imports the REST API: it needs FastAPI, the queries of the catalog and the rules of alarms, but no
# pyarrow.
API = "plugins/lakehouse_airflow/api"
# Programs of users import the client; DAG files do not.
CLIENT = "plugins/lakehouse_airflow/client.py"
API_IMPORTS = (
    "fastapi",
    "sqlalchemy",
    "starlette",
    "lakehouse.core.system",
    "lakehouse.platform.alarms",
    "lakehouse.platform.catalog",
    "lakehouse.platform.fleet_views",
)


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted name of every import in `tree`, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_below(name: str, packages: tuple[str, ...]) -> bool:
    """Return whether `name` is one of `packages` or inside of one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def is_light(name: str) -> bool:
    """Return whether the plugin and the DAG files may import `name`."""
    standard = name.partition(".")[0] in sys.stdlib_module_names
    # The package `lakehouse` imports its public names lazily; these are checked by their own names.
    return standard or name == "lakehouse" or is_below(name, (*LIGHT, *LIGHT_PACKAGES))


def may_import(module: Module, name: str) -> bool:
    """Return whether a module of the plugin or a DAG file may import `name`."""
    if module.path == CLIENT:
        return is_below(name, ("lakehouse.platform.remote", "__future__"))
    return is_light(name) or (module.within(API) and is_below(name, API_IMPORTS))


def module_name(path: str) -> str:
    """Return the dotted name of the module at `path`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_graph(parsed: list[Module]) -> dict[str, set[str]]:
    """Return the modules of `parsed` that each of them imports."""
    known = {module_name(module.path) for module in parsed}
    graph: dict[str, set[str]] = {}
    for module in parsed:
        # `from package import name` imports the module `package.name`, or else a name of the module `package`.
        names = {name if name in known else name.rpartition(".")[0] for name in imported(module.tree)}
        graph[module_name(module.path)] = (names & known) - {module_name(module.path)}
    return graph


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules that are in a cycle or import one; empty if there is no cycle."""
    remaining = {name: set(targets) for name, targets in graph.items()}
    while leaves := [name for name, targets in remaining.items() if not targets & remaining.keys()]:
        for name in leaves:
            del remaining[name]
    return sorted(remaining)


def hidden_imports(module: Module) -> list[str]:
    """Return the imports inside functions of `module`."""
    functions = [node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [f"{module.path}: {name}" for function in functions for name in imported(function)]


def file_openers(module: Module) -> list[str]:
    """Return the calls in `module` that open a path."""
    verbs = {"read_bytes", "read_text", "write_bytes", "write_text"}
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    return [
        f"{module.path}:{call.lineno}"
        for call in calls
        if (isinstance(call.func, ast.Name) and call.func.id == "open")
        or (isinstance(call.func, ast.Attribute) and call.func.attr in verbs)
    ]


def test_every_module_imports_only_from_lower_layers() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([linter, "--no-logo"], cwd=ROOT, capture_output=True, check=False, text=True)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"


def test_importing_light_packages_loads_no_heavy_package() -> None:
    paths = [
        m.path for m in modules("lakehouse") if m.within("lakehouse/model", "lakehouse/spec", "lakehouse/errors.py")
    ]
    names = ["lakehouse", *(path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths)]
    script = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
print(sorted(set(sys.modules) & set({HEAVY!r})))
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True, text=True)
    assert run.stdout.strip() == "[]"


def test_plugin_and_dags_import_only_light_packages() -> None:
    # Mergers and functions of transforms run in the Spark environment; .airflowignore excludes them from parsing.
    ignored = ["examples/mergers/", "examples/privacy/masking.py"]
    assert (ROOT / "dags" / ".airflowignore").read_text().split() == ignored
    parsed = [m for m in modules("plugins", "dags") if not m.path.startswith(tuple(f"dags/{name}" for name in ignored))]
    assert [f"{m.path}: {name}" for m in parsed for name in imported(m.tree) if not may_import(m, name)] == []


def test_queries_of_pages_load_no_pyarrow_and_only_the_system_package_of_the_core() -> None:
    names = [module_name(m.path) for m in modules("lakehouse/platform/fleet_views")]
    script = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
heavy = {{"pyspark", "pyarrow", "numpy", "pandas", "obstore"}} & set(sys.modules)
core = {{name for name in sys.modules if name.startswith("lakehouse.core.")}}
print(sorted(heavy | {{name for name in core if not name.startswith("lakehouse.core.system")}}))
"""
    assert names
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True, text=True)
    assert run.stdout.strip() == "[]"


def test_pure_packages_open_no_file() -> None:
    assert [found for module in modules("lakehouse") if module.within(*PURE) for found in file_openers(module)] == []


def test_no_modules_import_each_other_in_a_cycle() -> None:
    assert cycle(import_graph(list(modules("lakehouse")))) == []


def test_services_import_no_module_of_writes() -> None:
    services = "lakehouse/core/operations/services"
    imports = [
        f"{module.path}: {name}"
        for module in modules(services)
        for name in imported(module.tree)
        if is_below(name, ("lakehouse.core.operations.write",))
    ]
    assert imports == []


def test_functions_import_only_optional_extras_and_public_names() -> None:
    hidden = [name for module in modules("lakehouse", "plugins") for name in hidden_imports(module)]
    allowed = ("lakehouse/__init__.py: ", "lakehouse/platform/services/metrics.py: opentelemetry.")
    assert hidden
    assert [name for name in hidden if not name.startswith(allowed)] == []


def test_a_cycle_of_imports_is_found() -> None:
    texts = {"a/x.py": "from a.y import f\n", "a/y.py": "from a import z\n", "a/z.py": "import a.x\n", "a/w.py": ""}
    parsed = [Module.of(path, text) for path, text in texts.items()]
    assert cycle(import_graph(parsed)) == ["a.x", "a.y", "a.z"]
    assert cycle(import_graph(parsed[1:])) == []


def test_planted_import_and_open_are_found() -> None:
    module = Module.of("plugins/x.py", "import os\ndef f(p):\n    from lakehouse.spark import x\n    return open(p)\n")
    assert [name for name in imported(module.tree) if not is_light(name)] == ["lakehouse.spark.x"]
    assert file_openers(module) == ["plugins/x.py:4"]


def modules_named_by_strings(module: Module) -> set[str]:
    """Return the string literals of `module` that are names of modules below a package of the project."""
    literals = {
        node.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value)
    }
    # Options begin with `lakehouse.`, too.
    return {name for name in literals if (ROOT / Path(*name.split(".")[:2])).is_dir()}


def test_modules_that_are_imported_by_a_string_exist() -> None:
    missing = [
        (module.path, name)
        for module in modules("lakehouse", "plugins")
        for name in sorted(modules_named_by_strings(module))
        if not (ROOT / Path(*name.split("."))).is_dir()
        and not (ROOT / Path(*name.split("."))).with_suffix(".py").exists()
    ]
    assert missing == []


def test_module_named_by_a_string_is_distinguished_from_an_option() -> None:
    source = "a('lakehouse.core.nowhere'); b('lakehouse.lock.provider'); c('no module lakehouse.core.x')"
    assert modules_named_by_strings(Module.of("lakehouse/x.py", source)) == {"lakehouse.core.nowhere"}
