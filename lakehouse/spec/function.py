"""Load functions of users. Specs and options refer to them as `package.module:function`.

Two rules prevent a table from running arbitrary code:

- A function that a table refers to is called only if the caller allows it (in a spec, or in `allowed_functions`), or if
  the deployment does, in the environment variable `LAKEHOUSE_ALLOWED_FUNCTIONS`: names `package.module:function` and
  patterns `package.*` (every function in the package and in the modules below it), separated by commas.
- A module is never loaded from the working directory or from inside a table. Allowed are installed packages, the
  folders in `PYTHONPATH` and `LAKEHOUSE_MODULES`, and files of spark-submit's --py-files. The working directory is
  allowed only if one of the two variables contains its absolute path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from lakehouse.errors import UserError

ALLOWED_FUNCTIONS = "LAKEHOUSE_ALLOWED_FUNCTIONS"
_MODULES = "LAKEHOUSE_MODULES"
_PROPERTIES = Path(".hoodie", "hoodie.properties")
_loading = RLock()


def named_function(name: str, *, what: str, hint: str) -> Callable[..., Any]:
    """Load a function. If that fails, raise UserError with `what` (the kind of function) and `hint` (the remedy)."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise UserError(f"{what} {name!r}: expected package.module:function", function=name)
    try:
        loaded: Callable[..., Any] = getattr(_loaded(module), function)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{what} {name!r} cannot be loaded ({error}). {hint}", function=name) from error
    if not callable(loaded):
        raise UserError(f"{what} {name!r} is not a function but of type {type(loaded).__name__}", function=name)
    return loaded


def deployment_functions(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names and patterns of functions that the deployment allows."""
    return tuple(part.strip() for part in environ.get(ALLOWED_FUNCTIONS, "").split(",") if part.strip())


def is_allowed(name: str, allowed: Iterable[str]) -> bool:
    """Return whether one of the `allowed` names or patterns (`package.*`) covers the function `name`."""
    module = name.partition(":")[0]
    return any(
        entry == name or (entry.endswith(".*") and f"{module}.".startswith(entry.removesuffix("*")) and entry != ".*")
        for entry in allowed
    )


def _loaded(name: str) -> ModuleType:
    """Import a module as `import_module` does, from trusted folders only; raise ImportError if none contains it."""
    if name in sys.modules:
        return import_module(name)
    with _loading:
        parent, _, short = name.rpartition(".")
        path = _loaded(parent).__path__ if parent else None
        # The import of the parent package may already have imported the module.
        if name in sys.modules:
            return import_module(name)
        spec = _spec(name, path)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(
                f"No module named {name!r}, neither installed nor in a folder of PYTHONPATH or {_MODULES}", name=name
            )
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        if parent:
            setattr(sys.modules[parent], short, module)
        return sys.modules[name]


def _spec(name: str, path: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is PathFinder:
            spec = PathFinder.find_spec(name, _trusted_path() if path is None else path)
        else:
            # Built-in and frozen modules, and packages in editable installations, have no file below a trusted folder.
            spec = finder.find_spec(name, path)
        if spec is not None:
            _refuse_inside_table(spec)
            return spec
    return None


def _trusted_path() -> list[str]:
    """Return sys.path without relative entries, the working directory (unless it is allowed) and folders of tables."""
    working, allowed = os.path.realpath(os.getcwd()), _named_folders()
    trusted = []
    for entry in sys.path:
        if not os.path.isabs(entry):
            continue
        folder = os.path.realpath(entry)
        if (folder != working or folder in allowed) and _table_around(folder) is None:
            trusted.append(entry)
    return trusted


def _named_folders() -> frozenset[str]:
    entries = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *os.environ.get(_MODULES, "").split(":")]
    return frozenset(os.path.realpath(entry) for entry in entries if os.path.isabs(entry))


def _refuse_inside_table(spec: ModuleSpec) -> None:
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location and spec.origin else [])]
    for place in places:
        table = _table_around(os.path.realpath(place))
        if table is not None:
            raise ImportError(f"module {spec.name!r} lies in {place}, inside the table {table}", name=spec.name)


def _table_around(place: str) -> Path | None:
    """Return the table that contains a path, or None."""
    path = Path(place)
    return next((folder for folder in (path, *path.parents) if (folder / _PROPERTIES).exists()), None)
