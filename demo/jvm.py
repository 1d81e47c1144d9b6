"""Flags of JVMs that run for seconds: a cheap compiler and collector, and an archive of Spark's classes."""

from __future__ import annotations

from pathlib import Path

#: The optimising compiler and parallel collectors cost more than they save in jobs of seconds.
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: A JVM with other jars or of another version ignores the archive. It would say so on standard output, which
#: spark-class reads.
_USE = "-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
#: The archive that `make` writes below the environment with Spark.
_ARCHIVE = "spark.jsa"


def short_job_flags(environment: Path) -> str:
    """Return the flags for `JDK_JAVA_OPTIONS` of short Spark jobs, of the Spark in a virtual environment.

    An archive of class data (JEP 350) saves a third of the CPU time of a job that lasts 10 s. Without an archive in the
    environment the flags do not name one.
    """
    archive = environment / _ARCHIVE
    # The launcher splits the variable at white space.
    usable = archive.is_file() and not any(character.isspace() for character in str(archive))
    return f"{_SHORT} {_USE.format(archive=archive)}" if usable else _SHORT
