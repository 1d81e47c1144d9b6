"""Small modules with one importer in the same folder belong into that importer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.architecture.sources import CODE, Module, modules, package_of, report_lower
from tests.architecture.test_imports import import_graph, module_name
from tests.architecture.test_sizes import FILE_LINES

SMALL_LINES = 80
#: A registry imports the implementations of an extension point, which remain modules of their own.
REGISTRY = "registry.py"
#: Allowed number of such modules in the packages that are not revised. Numbers only shrink.
ALLOWED = {"lakehouse/platform": 2, "lakehouse": 2, "demo": 2}


def small_modules(parsed: Sequence[Module]) -> dict[str, str]:
    """Return path -> path of the only importer, for modules of at most 80 lines whose importer is in the same folder.

    An importer that would exceed the limit of lines cannot take its module in.
    """
    by_name = {module_name(module.path): module for module in parsed}
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, targets in import_graph(list(parsed)).items():
        for target in targets:
            importers[target].add(name)
    pairs = {}
    for name, names in importers.items():
        module, importer = by_name[name], by_name[min(names)]
        lines = len(module.text.splitlines())
        if len(names) > 1 or lines > SMALL_LINES or module.path.endswith("__init__.py"):
            continue
        if importer.path.endswith(f"/{REGISTRY}"):
            continue
        is_near = module.path.rpartition("/")[0] == importer.path.rpartition("/")[0]
        if is_near and lines + len(importer.text.splitlines()) <= FILE_LINES:
            pairs[module.path] = importer.path
    return pairs


def test_small_module_with_one_importer_is_part_of_it() -> None:
    pairs = small_modules(list(modules(*CODE)))
    numbers = Counter(package_of(path) for path in pairs)
    report_lower(numbers, ALLOWED)
    above = {
        package: [pair for pair in pairs.items() if package_of(pair[0]) == package]
        for package, number in numbers.items()
        if number > ALLOWED.get(package, 0)
    }
    assert above == {}, "merge the module into its importer"


def _module(path: str, *imports: str, lines: int = 10) -> Module:
    return Module.of(path, "".join(f"import {name}\n" for name in imports) + "pass\n" * (lines - len(imports)))


def test_small_module_of_one_neighbour_is_seen() -> None:
    user = _module("a/user.py", "a.small")
    assert small_modules([_module("a/small.py"), user]) == {"a/small.py": "a/user.py"}


def test_large_shared_distant_and_registered_modules_remain() -> None:
    small = _module("a/small.py")
    assert small_modules([_module("a/small.py", lines=81), _module("a/user.py", "a.small")]) == {}
    assert small_modules([small, _module("a/user.py", "a.small"), _module("a/other.py", "a.small")]) == {}
    assert small_modules([small, _module("b/user.py", "a.small")]) == {}
    assert small_modules([small, _module("a/registry.py", "a.small")]) == {}
    assert small_modules([small, _module("a/user.py", "a.small", lines=FILE_LINES - 9)]) == {}
