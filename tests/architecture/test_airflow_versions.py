"""Only the package `lakehouse_airflow.compat` knows the differences between versions of Airflow."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.sources import Module, modules
from tests.architecture.test_imports import imported

COMPAT = "plugins/lakehouse_airflow/compat"
#: Modules of Airflow whose names differ between the supported versions.
DIFFERENT = re.compile(
    r"airflow\.(sdk|datasets|decorators|exceptions|hooks|notifications|operators|sensors|timetables\.(assets|datasets|"
    r"interval|trigger|simple)|triggers|configuration|models\.(xcom|dataset|asset|baseoperator|param)|listeners|"
    r"plugins_manager)(\.|$)"
)
#: The pages exist on Airflow 3.1 and newer only, where these imports are equal.
PAGES = "plugins/lakehouse_airflow/api"
VERSION = re.compile(r"airflow_version|AIRFLOW_VERSION|installed_line|airflow\.__version__|AIRFLOW_V_")


def direct_imports(module: Module) -> list[str]:
    """Return the imports of `module` that bypass the package compat."""
    return [f"{module.path}: {name}" for name in imported(module.tree) if DIFFERENT.match(name)]


def comparisons(module: Module) -> list[str]:
    """Return the comparisons in `module` with the version of Airflow."""
    nodes = [node for node in ast.walk(module.tree) if isinstance(node, ast.Compare)]
    return [f"{module.path}:{node.lineno}" for node in nodes if VERSION.search(ast.unparse(node))]


def test_only_the_package_compat_imports_names_that_differ_between_versions() -> None:
    others = [m for m in modules("plugins", "dags", "demo") if not m.within(COMPAT, PAGES)]
    assert [line for module in others for line in direct_imports(module)] == []


def test_only_the_package_compat_compares_versions_of_airflow() -> None:
    others = [m for m in modules("plugins", "dags", "demo", "lakehouse") if not m.within(COMPAT)]
    assert [line for module in others for line in comparisons(module)] == []


@pytest.mark.parametrize(
    "source",
    ["from airflow.sdk import DAG", "from airflow.exceptions import AirflowException", "import airflow.datasets"],
)
def test_an_import_that_bypasses_compat_is_found(source: str) -> None:
    assert len(direct_imports(Module.of("plugins/x.py", source))) == 1


def test_a_comparison_of_versions_is_found() -> None:
    assert comparisons(Module.of("plugins/x.py", "if installed_line() >= (3, 1): pass")) == ["plugins/x.py:1"]
    assert comparisons(Module.of("plugins/x.py", "if limit > 3: pass")) == []
