"""The parts of `lakehouse environment pack`: the packed files, and the archive. tests/clusters packs a whole one."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.cli.packing.archive import check_archive, digest_of, write_archive
from lakehouse.cli.packing.content import Selection, stage_environment
from lakehouse.cli.packing.interpreter import Interpreter, describe_interpreter, shared_libraries
from lakehouse.errors import UserError


def install(packages: Path, name: str, requires: tuple[str, ...] = (), script: str = "", url: str = "") -> None:
    """Install a package with one module."""
    info = packages / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {one}" for one in requires)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    (packages / f"{name}.py").write_text(f"def main():\n    print('{name} runs')\n")
    (info / "RECORD").write_text(f"{name}.py,,\n{info.name}/METADATA,,\n{info.name}/entry_points.txt,,\n")
    (info / "entry_points.txt").write_text(f"[console_scripts]\n{script} = {name}:main\n" if script else "")
    if url:
        (info / "direct_url.json").write_text(url)


@pytest.fixture(scope="module")
def base() -> Interpreter:
    return describe_interpreter(sys.executable)


@pytest.fixture
def small(base: Interpreter, tmp_path: Path) -> Interpreter:
    """An environment with some small packages, on the interpreter of the tests with a few modules of its library."""
    packages, code = tmp_path / "packages", tmp_path / "code" / "lakehouse"
    install(packages, "first", ("second>=1", "third; extra == 'more'", "fourth; python_version < '4'"), "first-program")
    for name in ("second", "third", "fourth", "other"):
        install(packages, name)
    code.mkdir(parents=True)
    (code / "__init__.py").write_text("")
    return replace(base, packages=(packages,), lakehouse=(code, "1.0"))


def staged(interpreter: Interpreter, selection: Selection, folder: Path) -> dict[str, Path]:
    """Stage an environment; return name -> path of the modules in its folder of packages."""
    stage_environment(interpreter, selection, folder)
    packages = next(folder.rglob("lakehouse")).parent
    return {path.name: path for path in packages.iterdir() if path.suffix == ".py" or path.is_dir()}


def test_all_packages_are_packed_by_default_with_programs_that_run_in_another_folder(
    small: Interpreter, tmp_path: Path
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "merger.py").write_text("def merge(): ...\n")
    packed = staged(small, Selection(modules=(modules,)), tmp_path / "staged")
    assert {"first.py", "second.py", "third.py", "fourth.py", "other.py", "merger.py", "lakehouse"} <= set(packed)
    moved = tmp_path / "moved"
    (tmp_path / "staged").rename(moved)
    bare = {"PATH": os.defpath}
    done = subprocess.run([moved / "bin" / "first-program"], env=bare, capture_output=True, text=True, check=False)
    assert done.stdout == "first runs\n", done.stderr
    # All files that the process maps are its own or belong to the C library of the system.
    code = "import ssl, sqlite3, ctypes, lzma, bz2, merger, sys; print(open('/proc/self/maps').read()); print(sys.path)"
    done = subprocess.run([moved / "bin" / "python", "-c", code], env=bare, capture_output=True, text=True, check=False)
    maps = {line.split()[-1] for line in done.stdout.splitlines() if ".so" in line}
    foreign = {path for path in maps if not path.startswith(str(moved))}
    assert maps - foreign, done.stderr
    assert all(
        Path(path).name.startswith(("libc.", "libm.", "ld-", "libdl", "libpthread", "libutil", "librt"))
        for path in foreign
    ), foreign
    for program in ("python", "first-program"):
        assert str(tmp_path) not in (moved / "bin" / program).read_text()


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("first", {"first.py", "second.py", "fourth.py"}),
        ("First[more]", {"first.py", "second.py", "third.py", "fourth.py"}),
    ],
)
def test_only_named_packages_are_packed_with_their_requirements(
    small: Interpreter, tmp_path: Path, only: str, expected: set[str]
) -> None:
    packed = staged(small, Selection(only=(only,)), tmp_path / "staged")
    assert {name for name in packed if name.endswith(".py")} == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"only": ("firts",)}, "--only firts: the package is not installed.*first"),
        ({"modules": ("second.py",)}, "the module second has the name of an installed package"),
        ({"modules": (None,)}, "is not a folder"),
    ],
)
def test_selection_that_cannot_be_packed_is_refused(
    small: Interpreter, tmp_path: Path, changes: Mapping[str, tuple[str | None, ...]], message: str
) -> None:
    modules = []
    for name in changes.get("modules", ()):
        modules.append(tmp_path / f"modules-{name}")
        if name is not None:
            modules[-1].mkdir()
            (modules[-1] / name).write_text("")
    selection = Selection(only=tuple(map(str, changes.get("only", ()))), modules=tuple(modules))
    with pytest.raises(UserError, match=message):
        stage_environment(small, selection, tmp_path / "staged")


def test_editable_package_is_refused_because_its_files_are_elsewhere(small: Interpreter, tmp_path: Path) -> None:
    install(small.packages[0], "mine", url='{"url": "file:///src", "dir_info": {"editable": true}}')
    with pytest.raises(UserError, match=r"the package mine is an editable installation.*--also"):
        stage_environment(small, Selection(), tmp_path / "staged")


def test_python_that_does_not_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be started: No such file"):
        describe_interpreter(str(tmp_path / "python"))
    program = tmp_path / "old"
    program.write_text("#!/bin/sh\necho no such option >&2\nexit 2\n")
    program.chmod(0o755)
    with pytest.raises(UserError, match=r"is not a Python from 3\.11: no such option"):
        describe_interpreter(str(program))


def test_shared_libraries_exclude_the_c_library_and_packed_folders() -> None:
    program = Path("/bin/sh").resolve()
    assert not any(name.startswith(("libc.", "ld-", "linux-")) for name in shared_libraries([program], []))
    of_arrow = Path(__import__("pyarrow").__file__).parent
    libraries = shared_libraries([next(of_arrow.glob("lib.*.so"))], [of_arrow])
    assert "libstdc++.so.6" in libraries
    assert not any(name.startswith("libarrow") for name in libraries)


def test_digest_and_archive_depend_on_contents_only(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for number, folder in enumerate(folders):
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").write_text("#!/bin/sh\n")
        (folder / "bin" / "python").chmod(0o755)
        (folder / "m.py").write_text("v = 1\n")
        (folder / "m.pyc").write_text(str(number) * number)
        os.utime(folder / "m.py", (number, number))
    first, second = map(digest_of, folders)
    assert first == second
    for folder in folders:
        (folder / "m.pyc").unlink()
        write_archive(folder, tmp_path / f"{folder.name}.tar.gz")
    contents = [(tmp_path / f"{name}.tar.gz").read_bytes() for name in "ab"]
    assert contents[0] == contents[1]
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        assert [(member.name, member.mode) for member in archive] == [("bin/python", 0o755), ("m.py", 0o644)]
    assert not list(tmp_path.glob(".*"))
    (folders[1] / "m.py").write_text("v = 2\n")
    assert digest_of(folders[1]) != first
    (folders[0] / "m.py").chmod(0o755)
    assert digest_of(folders[0]) != first


def test_archive_whose_python_lacks_a_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e" / "bin").mkdir(parents=True)
    (tmp_path / "e" / "bin" / "python").write_text("#!/bin/sh\necho \"No module named 're2'\" >&2\nexit 1\n")
    (tmp_path / "e" / "bin" / "python").chmod(0o755)
    write_archive(tmp_path / "e", tmp_path / "e.tar.gz")
    with pytest.raises(UserError, match="does not import lakehouse, pyarrow, numpy, re2: No module named 're2'"):
        check_archive(tmp_path / "e.tar.gz")
