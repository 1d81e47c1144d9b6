"""Locate the parts of a Python interpreter: its program, its standard library and its shared libraries.

    pyenv, python.org     the program needs libpython of its own folder, whose absolute path is in the program
    uv                    libpython is inside the program, or is found relative to it
    Debian, Ubuntu        the standard library is below /usr/lib, packages are in `dist-packages`

The program finds its standard library relative to itself, so the copies of both have the same places in the archive.
The shared libraries of the system that the interpreter and the packages load, such as OpenSSL and libffi, are copied
too: a node may have other versions. The C library itself is not copied, because it must fit the kernel and the loader
of the node. Nodes therefore need the same or a newer glibc.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lakehouse
from lakehouse.errors import UserError

#: Parts of the C library, by the begin of their names.
_C_LIBRARY = re.compile(r"(linux-vdso|linux-gate|ld-linux|(lib(c|m|dl|pthread|rt|util|resolv|nsl|anl)\.so))")
_LIBRARY = re.compile(r"^\s*(\S+) => (/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)
_FILES_PER_CALL = 100
_DESCRIBE = """
import json, os, site, sys, sysconfig
try:
    import lakehouse
    package = os.path.dirname(lakehouse.__file__), lakehouse.__version__
except ImportError:
    package = "", ""
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2], "prefix": sys.prefix, "package": package[0], "release": package[1],
    "program": os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable), "library": sys.platlibdir,
    "standard": sysconfig.get_path("stdlib"), "packages": [p for p in site.getsitepackages() if os.path.isdir(p)],
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python environment and the interpreter that it is based on.

    Attributes:
        version: Major and minor version, such as 3.11.
        program: The program of the base interpreter, not a link of a virtual environment.
        library_folder: `lib`, or `lib64` on some systems: the folder of the standard library below its prefix.
        standard_library: The folder of the standard library.
        packages: The folders of installed packages.
        lakehouse: The folder of the package lakehouse, and its version.
    """

    version: str
    program: Path
    library_folder: str
    standard_library: Path
    packages: tuple[Path, ...]
    lakehouse: tuple[Path, str]


def describe_interpreter(python: str) -> Interpreter:
    """Return the parts of the environment of a Python program; raise UserError if it cannot be packed."""
    if not sys.platform.startswith("linux"):
        raise UserError(f"an environment of {sys.platform} does not run on nodes with Linux: pack it on Linux")
    values = _described(python)
    # The command packs the code that it runs, even if a source tree is first on the path of modules.
    if Path(values["prefix"]) == Path(sys.prefix):
        values |= {"package": str(Path(lakehouse.__file__).parent), "release": lakehouse.__version__}
    if not values["package"]:
        raise UserError(f"{python} has no lakehouse: install lakehouse-tables[spark] in its environment", path=python)
    return Interpreter(
        version=values["version"],
        program=Path(values["program"]),
        library_folder=values["library"],
        standard_library=Path(values["standard"]),
        packages=tuple(Path(path) for path in values["packages"]),
        lakehouse=(Path(values["package"]), values["release"]),
    )


def _described(python: str) -> dict[str, Any]:
    try:
        done = subprocess.run([python, "-I", "-c", _DESCRIBE], capture_output=True, text=True, check=False)
        values: dict[str, Any] = json.loads(done.stdout)
    except OSError as error:
        raise UserError(f"--python {python} cannot be started: {error.strerror}", path=python) from None
    except ValueError:
        reason = done.stderr.strip()[-500:] or f"exit code {done.returncode}"
        raise UserError(f"--python {python} is not a Python from 3.11: {reason}", path=python) from None
    return values


def shared_libraries(programs: Iterable[Path], own_folders: Iterable[Path]) -> dict[str, Path]:
    """Return name -> path of the system's shared libraries that the files load, without the C library.

    Args:
        programs: Programs and shared libraries.
        own_folders: Folders that are packed anyway. Libraries in them are found relative to the files that load them.
    """
    paths, inside = list(map(str, programs)), tuple(f"{folder.resolve()}/" for folder in own_folders)
    libraries: dict[str, Path] = {}
    for first in range(0, len(paths), _FILES_PER_CALL):
        for name, path in _LIBRARY.findall(_loaded(paths[first : first + _FILES_PER_CALL])):
            if not _C_LIBRARY.match(Path(name).name) and not str(Path(path).resolve()).startswith(inside):
                libraries.setdefault(Path(name).name, Path(path))
    return dict(sorted(libraries.items()))


def _loaded(paths: list[str]) -> str:
    try:
        # It returns an error code if one of the files is not dynamic.
        return subprocess.run(["ldd", *paths], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        raise UserError(
            "the program ldd is missing, which lists shared libraries; install the package libc-bin"
        ) from None
