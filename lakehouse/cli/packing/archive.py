"""Write the archive of a staged environment, and check that it works.

The name of the archive has a digest of its files: a changed environment gets a new name, and nodes that keep unpacked
archives, such as YARN's, never use an old one. Two archives of the same environment are equal byte for byte, except for
compiled modules, which are not in the digest.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from lakehouse.core.engine.progress import Stage, finished_task, observed_stage
from lakehouse.errors import UserError

_READ_BYTES = 1 << 20
_DIGEST_DIGITS = 12
#: Modules without which no task of a job runs; `re2` and `pyarrow` are compiled.
CHECKED_MODULES = ("lakehouse", "pyarrow", "numpy", "re2")
#: The name of the unpacked folder in the working directory of executors.
UNPACKED = "environment"


def compile_modules(folder: Path) -> None:
    """Compile the modules, so that each executor does not repeat it. The code names no path of this host.

    Files that are not valid for this version, such as templates, are left as they are.
    """
    words = ["-m", "compileall", "-q", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(folder)]
    subprocess.run([folder / "bin" / "python", "-I", *words, str(folder)], capture_output=True, check=False)


def digest_of(folder: Path) -> str:
    """Return a digest of the names, modes and contents of all files except compiled modules."""
    total = hashlib.sha256()
    for path in _files(folder):
        if path.suffix == ".pyc":
            continue
        content = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                content.update(data)
        total.update(f"{path.relative_to(folder)}\0{_mode(path):o}\0{content.hexdigest()}\n".encode())
    return total.hexdigest()[:_DIGEST_DIGITS]


def write_archive(folder: Path, target: Path) -> None:
    """Write the files of a folder to a `tar.gz` file, which appears under its name when it is complete."""
    files = _files(folder)
    sizes = [path.stat().st_size for path in files]
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    stage = Stage(name="packing", table=target.name, unit="files", total=len(files), total_bytes=sum(sizes))
    try:
        with (
            observed_stage(stage) as running,
            running.tasks(sizes),
            unfinished.open("wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
        ):
            finished = finished_task()
            for number, path in enumerate(files):
                _add(archive, path, str(path.relative_to(folder)))
                if finished is not None:
                    finished(number)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def check_archive(archive: Path) -> None:
    """Unpack an archive into a temporary folder and import the modules of jobs; raise UserError if that fails."""
    with TemporaryDirectory(prefix="lakehouse-") as place:
        with tarfile.open(archive) as packed:
            packed.extractall(Path(place) / UNPACKED, filter="tar")
        # No variable of this process helps the packed Python, and it is started as Spark starts it.
        done = subprocess.run(
            [f"./{UNPACKED}/bin/python", "-c", f"import {', '.join(CHECKED_MODULES)}"],
            cwd=place,
            env={"PATH": os.defpath},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = done.stderr.strip()[-500:] or f"exit code {done.returncode}"
            raise UserError(
                f"{archive}: the packed Python does not import {', '.join(CHECKED_MODULES)}: {reason}. Install "
                "lakehouse-tables[spark] in the environment",
                path=str(archive),
            )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file without owner and time, which differ between hosts."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = path.stat().st_size, _mode(path)
    with path.open("rb") as file:
        archive.addfile(member, file)


def _mode(path: Path) -> int:
    return 0o755 if path.stat().st_mode & 0o100 else 0o644
