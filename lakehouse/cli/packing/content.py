"""Collect the files of a packed environment in a folder.

    bin/python           a script: it starts the interpreter next to it with the libraries of `lib`
    bin/python3.11       the interpreter
    bin/lakehouse        the programs of the packages, which start the interpreter next to them
    lib/*.so*            shared libraries of the system
    lib/python3.11       the standard library, without its tests
    .../site-packages    the packages, and the modules of users

No file contains the path of the folder, so the archive works wherever it is unpacked. pyspark is included without its
jars: Spark on the nodes has its own jars and puts its own pyspark first on the path.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePath

from lakehouse.cli.packing.interpreter import Interpreter, shared_libraries
from lakehouse.errors import UserError, nearest

NAME = "lakehouse-tables"
_START = """#!/bin/sh
# Starts the Python of this folder, wherever the folder is.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd -P) || exit 1
export LD_LIBRARY_PATH="${{here%/*}}/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export PYTHONNOUSERSITE=1
unset PYTHONHOME
exec "$here/python{version}" "$@"
"""
#: A shell reads the second line and starts Python, which reads the same lines as a string.
_PROGRAM = """#!/bin/sh
'''exec' "$(dirname -- "$(readlink -f -- "$0")")"/'python' "$0" "$@"
' '''
import sys
from {module} import {name}
sys.exit({call}())
"""
#: Folders of the standard library that no job needs. `config-*` has libpython for linking, 70 MB.
_NOT_STANDARD = {"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip"}
_NOT_PACKED = re.compile(
    r"(__pycache__|\.git|.*\.py[co]|__editable__.*|_virtualenv\.(py|pth)|direct_url\.json|RECORD|INSTALLER|REQUESTED"
    r"|sitecustomize\.py|EXTERNALLY-MANAGED|config-\d.*|_tkinter\..*|pip|pip-.*\.dist-info|uv|uv-.*\.dist-info)$"
)
#: Folders of packages that no job needs. Spark itself has the rest of pyspark, whose jars have more than 400 MB.
_NOT_NEEDED = {
    "pyspark": {"jars", "examples", "data", "licenses", "bin", "sbin", "R", "kubernetes", "python", "testing", "tests"},
    "pyarrow": {"tests", "include", "src"},
    "pandas": {"tests"},
    "numpy": {"tests"},
}
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([\w.,\s-]*)\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The choice of a user.

    Attributes:
        only: Requirements such as `lakehouse-tables[spark]`, which are packed with their own requirements. Empty for
            all packages of the environment.
        modules: Folders with modules of users.
    """

    only: tuple[str, ...] = ()
    modules: tuple[Path, ...] = ()


def stage_environment(interpreter: Interpreter, selection: Selection, folder: Path) -> None:
    """Copy the files of an environment to an empty folder."""
    for module_folder in selection.modules:
        if not module_folder.is_dir():
            raise UserError(f"--also {module_folder} is not a folder", path=str(module_folder))
    _stage_interpreter(interpreter, folder)
    packages = folder / _packages_folder(folder)
    chosen = _chosen(interpreter, selection.only)
    if selection.only:
        _copy_chosen(chosen, packages)
    else:
        for source in interpreter.packages:
            _copy_tree(source, packages, partial(_is_omitted_below, source))
    _copy_tree(interpreter.lakehouse[0], packages / "lakehouse")
    for module_folder in selection.modules:
        _refuse_hidden(module_folder, packages)
        _copy_tree(module_folder, packages)
    _write_programs(chosen, folder / "bin")
    own = (*interpreter.packages, interpreter.lakehouse[0])
    loaded = [path for path in folder.rglob("*.so*") if path.is_file()]
    for name, path in shared_libraries([interpreter.program, *loaded], [*own, folder]).items():
        shutil.copyfile(path, folder / "lib" / name)


def _stage_interpreter(interpreter: Interpreter, folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    program = folder / "bin" / f"python{interpreter.version}"
    shutil.copyfile(interpreter.program, program)
    program.chmod(0o755)
    for name in ("python", "python3"):
        _write_program(folder / "bin" / name, _START.format(version=interpreter.version))
    standard = folder / interpreter.library_folder / f"python{interpreter.version}"
    _copy_tree(interpreter.standard_library, standard, lambda path: path.name in _NOT_STANDARD)
    # The interpreter needs libpython before it can be asked for its folders.
    for name, path in shared_libraries([interpreter.program], [folder]).items():
        shutil.copyfile(path, folder / "lib" / name)


def _packages_folder(folder: Path) -> Path:
    """Return where the copied interpreter looks for packages, relative to the folder: Debian's has another place."""
    ask = "import site, sys; print(sys.prefix); print(site.getsitepackages()[0])"
    done = subprocess.run([folder / "bin" / "python", "-I", "-c", ask], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) != 2 or Path(lines[0]).resolve() != folder.resolve():
        raise UserError(
            f"the copied interpreter does not start in another folder: {done.stderr.strip()[-500:] or lines}. Create "
            "the environment with a Python from uv or pyenv"
        )
    return Path(lines[1]).resolve().relative_to(folder.resolve())


def _copy_tree(source: Path, target: Path, is_omitted: Callable[[Path], bool] | None = None) -> None:
    """Copy a folder and resolve its links. Files on the same disk are linked, because nothing changes them."""
    for name in sorted(os.listdir(source)):
        path = source / name
        if _NOT_PACKED.match(name) or (is_omitted is not None and is_omitted(path)):
            continue
        if path.is_dir():
            _copy_tree(path, target / name, is_omitted)
        elif path.is_file():
            _copy_file(path, target / name)


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy(source, target)


def _is_omitted_below(packages: Path, path: Path) -> bool:
    return _is_omitted(path.relative_to(packages))


def _is_omitted(path: PurePath) -> bool:
    """Return whether a path, relative to the folder of packages, is in a part that no job needs."""
    parts = path.parts
    # The package lakehouse is copied from where it runs.
    return parts[0] == "lakehouse" or (len(parts) > 1 and parts[1] in _NOT_NEEDED.get(parts[0], ()))


def _copy_chosen(chosen: Sequence[Distribution], packages: Path) -> None:
    """Copy the files that the installer listed for each distribution."""
    for distribution in chosen:
        for listed in distribution.files or ():
            parts = listed.parts
            if ".." in parts or any(_NOT_PACKED.match(part) for part in parts) or _is_omitted(listed):
                continue
            source = Path(str(distribution.locate_file(listed)))
            if source.is_file():
                _copy_file(source, packages / listed)


def _chosen(interpreter: Interpreter, only: Sequence[str]) -> list[Distribution]:
    """Return the distributions to pack; raise UserError for one that the environment cannot give."""
    paths = [str(path) for path in interpreter.packages]
    installed = {_normal(each.name): each for each in distributions(path=paths)}
    chosen = installed if not only else {name: installed[name] for name in _closure(installed, only)}
    for name, distribution in sorted(chosen.items()):
        if name != NAME and _is_editable(distribution):
            raise UserError(
                f"the package {name} is an editable installation, whose files are elsewhere: install it without -e, or "
                "give the folder of its modules with --also",
                package=name,
            )
    return [distribution for _, distribution in sorted(chosen.items())]


def _closure(installed: dict[str, Distribution], only: Sequence[str]) -> list[str]:
    """Return the names of distributions and of their installed requirements.

    Conditions of requirements other than extras are not evaluated: an installed distribution is packed.
    """
    waiting = [_parsed(text) for text in only]
    for name, _ in waiting:
        if name not in installed:
            raise UserError(f"--only {name}: the package is not installed.{nearest(name, installed)}", package=name)
    seen: dict[tuple[str, str], None] = {}
    while waiting:
        name, extras = waiting.pop()
        for extra in ("", *extras):
            if name not in installed or (name, extra) in seen:
                continue
            seen[(name, extra)] = None
            for text in installed[name].requires or ():
                requirement, _, condition = text.partition(";")
                extra_match = _EXTRA.search(condition)
                if (extra_match[1] if extra_match else "") == extra:
                    waiting.append(_parsed(requirement))
    return sorted({name for name, _ in seen})


def _parsed(requirement: str) -> tuple[str, tuple[str, ...]]:
    match = _REQUIREMENT.match(requirement.strip())
    if match is None:
        raise UserError(f"--only {requirement!r} is not the name of a package", package=requirement)
    extras = tuple(extra.strip() for extra in (match[2] or "").split(",") if extra.strip())
    return _normal(match[1]), extras


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_editable(distribution: Distribution) -> bool:
    text = distribution.read_text("direct_url.json")
    return bool(text) and bool(json.loads(str(text)).get("dir_info", {}).get("editable"))


def _refuse_hidden(modules: Path, packages: Path) -> None:
    for path in sorted(modules.iterdir()):
        if path.suffix in ("", ".py") and not _NOT_PACKED.match(path.name) and _exists(packages, path.stem):
            raise UserError(
                f"--also {modules}: the module {path.stem} has the name of an installed package; rename it",
                path=str(path),
            )


def _exists(packages: Path, module: str) -> bool:
    return any((packages / name).exists() for name in (module, f"{module}.py"))


def _write_programs(chosen: Sequence[Distribution], folder: Path) -> None:
    """Write the programs that the distributions declare."""
    for script, value in _console_scripts(chosen):
        module, _, attributes = value.partition("[")[0].strip().partition(":")
        if not (folder / script).exists() and module:
            name = attributes.partition(".")[0]
            _write_program(folder / script, _PROGRAM.format(module=module, name=name, call=attributes))


def _console_scripts(chosen: Sequence[Distribution]) -> Iterator[tuple[str, str]]:
    for distribution in chosen:
        for entry in distribution.entry_points:
            if entry.group == "console_scripts" and entry.name.isprintable() and "/" not in entry.name:
                yield entry.name, entry.value


def _write_program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
