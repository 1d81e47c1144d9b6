"""`lakehouse environment pack`: the Python environment of jobs as an archive for the nodes of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.packing.archive import UNPACKED, check_archive, compile_modules, digest_of, write_archive
from lakehouse.cli.packing.content import Selection, stage_environment
from lakehouse.cli.packing.interpreter import Interpreter, describe_interpreter
from lakehouse.core.engine.progress import Stage, finished_task, observed_stage
from lakehouse.spec.contracts.packed_environment import PackedEnvironment

_ENDINGS = (".tar.gz", ".tgz")


def pack(given: Given) -> None:
    """Write the archive, check it, and print its path and the settings of Spark that use it."""
    interpreter = describe_interpreter(given.python or sys.executable)
    selection = Selection(only=tuple(given.only), modules=tuple(map(Path, given.also)))
    output = Path(given.to or ".")
    # The folder is next to the archive, so that files can be linked instead of copied.
    beside = output.parent if output.name.endswith(_ENDINGS) else output
    beside.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".lakehouse-", dir=beside) as place:
        folder = Path(place)
        with _step("copying", interpreter):
            stage_environment(interpreter, selection, folder)
        with _step("compiling", interpreter):
            compile_modules(folder)
        digest = digest_of(folder)
        name = f"lakehouse-{interpreter.lakehouse[1]}-py{interpreter.version}-{digest}.tar.gz"
        archive = output if output.name.endswith(_ENDINGS) else output / name
        write_archive(folder, archive)
    with _step("checking", interpreter):
        check_archive(archive)
    packed = PackedEnvironment(
        archive=str(archive),
        bytes=archive.stat().st_size,
        digest=digest,
        python=interpreter.version,
        lakehouse=interpreter.lakehouse[1],
        settings={
            "spark.archives": f"{archive.absolute()}#{UNPACKED}",
            "spark.pyspark.python": f"./{UNPACKED}/bin/python",
            "spark.pyspark.driver.python": sys.executable,
        },
    )
    show_document(packed, given.output)


@contextmanager
def _step(name: str, interpreter: Interpreter) -> Iterator[None]:
    """Show a step of the work while it runs."""
    version = interpreter.version
    of = Stage(name=name, table=f"the environment of Python {version}", unit="steps", total=1)
    with observed_stage(of) as running, running.tasks([0]):
        yield
        if (finished := finished_task()) is not None:
            finished(0)
