"""Rules that no other tool checks: docstrings, no prints outside of the command line, no names of one machine."""

from __future__ import annotations

import ast
import re

from tests.architecture.sources import CODE, EVERYTHING, ROOT, Module, modules, tracked_files

# Written in parts, so that this file does not match itself.
HOME_OR_REGISTRY = (r"(?<![\w.-])/ro" r"ot/", r"(?<![\w.-])/Us" r"ers/", r"index" r"[-_]url", r"trusted" r"[-_]host")
CHECKOUT = tuple(re.escape(str(path)) + r"(?![\w-])" for path in (ROOT, ROOT.parent / "shared"))
LEAKS = re.compile("|".join((*HOME_OR_REGISTRY, *CHECKOUT)), re.IGNORECASE)
# An image has its own absolute paths.
IMAGES = ("Dockerfile", "docker-compose.yml")
TEXT = (".py", ".toml", ".txt", ".md", ".yaml", ".yml", ".cfg", ".ini", ".sh", ".json", ".xml")
TEXT_NAMES = ("Makefile", "run", ".gitignore", ".airflowignore", ".dockerignore")

#: Files and folders at the top level.
TOP = {
    "dags", "demo", "deploy", "docs", "lakehouse", "plugins", "tests", ".ci",
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "Dockerfile", "Makefile",
    "docker-compose.yml",
    "pyproject.toml", "constraints-airflow.txt", "constraints-spark.txt", ".dockerignore", ".env.example", ".gitignore",
}  # fmt: skip


def undocumented(module: Module) -> list[str]:
    """Return the module, its public functions and classes that have no docstring."""
    public = [
        node
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    found = [f"{module.path}:{node.lineno} {node.name}" for node in public if not ast.get_docstring(node)]
    return found if ast.get_docstring(module.tree) else [f"{module.path}:1", *found]


def prints(module: Module) -> list[str]:
    """Return the lines of `module` that call print."""
    return [
        f"{module.path}:{node.lineno}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def leaks(path: str, text: str) -> list[str]:
    """Return the lines of `text` that name paths of one machine or a package registry."""
    return [f"{path}:{number} {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if LEAKS.search(line)]


#: Packages whose names are imported at first use.
DOORS = ("lakehouse/__init__.py", "lakehouse/spark/__init__.py")


def test_every_package_has_a_docstring_and_no_code_in_its_init_module() -> None:
    packages = [m for m in modules("lakehouse", "tests") if m.path.endswith("__init__.py") and m.path not in DOORS]
    with_code = [m.path for m in packages if len(m.tree.body) != 1 or not ast.get_docstring(m.tree)]
    assert with_code == []
    folders = {path.parent for path in (ROOT / "lakehouse").rglob("*.py")}
    assert [folder.name for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_module_and_public_name_has_a_docstring() -> None:
    assert [found for module in modules(*CODE) for found in undocumented(module)] == []


def test_only_the_command_line_calls_print() -> None:
    silent = [m for m in modules(*CODE) if not m.within("lakehouse/cli", "lakehouse/__main__.py", "demo")]
    assert [found for module in silent for found in prints(module)] == []


def test_no_module_is_named_utils() -> None:
    names = ("utils.py", "util.py", "helpers.py", "common.py", "misc.py")
    assert [m.path for m in modules(*EVERYTHING) if m.path.rpartition("/")[2] in names] == []


def test_no_file_names_one_machine_or_one_registry() -> None:
    names = {path: path.rpartition("/")[2] for path in tracked_files()}
    paths = [p for p, name in names.items() if (p.endswith(TEXT) or name in TEXT_NAMES) and name not in IMAGES]
    found = [leak for p in paths for leak in leaks(p, (ROOT / p).read_text(encoding="utf-8", errors="replace"))]
    assert found == []


def test_constraints_pin_versions_without_addresses() -> None:
    pins = {
        path.name: [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        for path in ROOT.glob("constraints-*.txt")
    }
    assert {"constraints-spark.txt", "constraints-airflow.txt"} <= set(pins)
    pin = re.compile(r"[A-Za-z0-9._-]+(\[[\w,-]+\])?==[A-Za-z0-9.+!_-]+")
    assert [line for lines in pins.values() for line in lines if not pin.fullmatch(line)] == []
    airflow = {line.partition("==")[0].lower() for line in pins["constraints-airflow.txt"]}
    assert not airflow & {"pyspark", "pyspark-client", "pyarrow"}, "Airflow's environment stays without Spark"


def test_planted_violations_are_found() -> None:
    module = Module.of("lakehouse/x.py", "def f():\n    print(1)\nclass A: pass\ndef _g(): pass\n")
    assert undocumented(module) == ["lakehouse/x.py:1", "lakehouse/x.py:1 f", "lakehouse/x.py:3 A"]
    assert prints(module) == ["lakehouse/x.py:2"]
    assert leaks("README.md", f"ok\ncd {ROOT}") == [f"README.md:2 cd {ROOT}"]
    assert leaks("README.md", "pip --index" + "-url x") == ["README.md:1 pip --index" + "-url x"]
    assert leaks("README.md", "see tests/unit and ../shared") == []


def test_top_level_has_only_the_files_of_the_project() -> None:
    # A test or script that gives a table a relative location leaves it there.
    assert {path.partition("/")[0] for path in tracked_files()} - TOP == set()
