"""The picture of imports is the generated one, and it shows the packages and imports of the code."""

from __future__ import annotations

from pathlib import Path

from docs.generators.architecture import architecture_files, layers_of, load_packages, svg

PROJECT = """
[[tool.importlinter.contracts]]
type = "layers"
containers = ["lakehouse"]
layers = ["__main__", "cli", "platform", "core", "errors"]

[[tool.importlinter.contracts]]
type = "layers"
containers = ["lakehouse.platform"]
layers = ["jobs"]

[[tool.importlinter.contracts]]
type = "layers"
containers = ["lakehouse.core"]
layers = ["table", "state | rows"]
"""


def _checkout(folder: Path, modules: dict[str, str]) -> Path:
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    for path, text in modules.items():
        file = folder / "lakehouse" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def test_picture_is_the_generated_one() -> None:
    for path, text in architecture_files().items():
        assert path.read_text(encoding="utf-8") == text, "the picture differs from the code: run 'make reference'"


def test_all_imports_of_the_code_are_allowed_and_all_packages_are_shown() -> None:
    packages = load_packages()
    assert packages.used - packages.allowed == set()
    assert {"lakehouse.cli", "lakehouse.core.rows", "lakehouse.platform.catalog", "lakehouse.errors"} <= {
        *packages.names
    }
    assert ("lakehouse.core.operations", "lakehouse.core.timeline") in packages.used


def test_layers_allow_imports_downwards_only(tmp_path: Path) -> None:
    packages = load_packages(_checkout(tmp_path, {"core/table/a.py": ""}))
    shown = ["cli", "platform.jobs", "core.table", "core.state", "core.rows", "errors"]
    assert packages.names == tuple(f"lakehouse.{name}" for name in shown)
    assert ("lakehouse.core.table", "lakehouse.core.rows") in packages.allowed
    assert ("lakehouse.cli", "lakehouse.core.rows") in packages.allowed
    siblings = {("lakehouse.core.state", "lakehouse.core.rows"), ("lakehouse.core.rows", "lakehouse.core.state")}
    assert not packages.allowed & (siblings | {("lakehouse.core.rows", "lakehouse.core.table")})


def test_import_of_a_package_or_of_a_name_in_a_function_is_used(tmp_path: Path) -> None:
    source = "from lakehouse.core import rows\ndef f():\n    import lakehouse.errors\n"
    packages = load_packages(_checkout(tmp_path, {"core/table/a.py": source, "core/rows/b.py": "import json\n"}))
    assert packages.used == {
        ("lakehouse.core.table", "lakehouse.core.rows"),
        ("lakehouse.core.table", "lakehouse.errors"),
    }


def test_picture_has_a_square_for_each_used_import_in_both_color_schemes(tmp_path: Path) -> None:
    packages = load_packages(_checkout(tmp_path, {"cli/a.py": "import lakehouse.errors\n"}))
    picture = svg(packages)
    assert picture.count('<rect class="used"') == 1 + 1  # the square and the legend
    assert picture.count('<rect class="allowed"') == len(packages.allowed) - 1 + 1
    assert "prefers-color-scheme: dark" in picture
    assert "cli imports errors" in picture


def test_siblings_of_a_layer_are_read_as_packages_of_their_container(tmp_path: Path) -> None:
    layers = layers_of(_checkout(tmp_path, {}) / "pyproject.toml")
    assert layers["lakehouse.core"] == [["lakehouse.core.table"], ["lakehouse.core.state", "lakehouse.core.rows"]]
