"""Differences between versions of Spark are in `lakehouse/spark/versions` only."""

from __future__ import annotations

import re

from tests.architecture.sources import modules

VERSIONS = "lakehouse/spark/versions/"
#: Names that differ between the supported versions, and comparisons of versions.
DIFFERENT = re.compile(
    r"sql\.classic|pyspark\.__version__|spark\.version\b|\.try_cast\(|is_valid_utf8\(|\.toArrow\(|toDDL|fromDDL"
    r"|\.metadataColumn\(|localCheckpoint\(|\.dataSource\b|unix\.domain\.socket|variant\.allowDuplicateKeys"
    r"|\.hint\(|\"variant\""
)
#: Calls of the interface itself.
INTERFACE = re.compile(r"spark_version\(\)\s*\.\w+")
#: Modules that only some versions import, and lines that are no use of a version.
ALLOWED = {
    "lakehouse/spark/source.py": {"spark.dataSource.register(LakehouseDataSource)"},
    "lakehouse/spark/parquet_input.py": {'_VERSION, _LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacy"'},
    "lakehouse/spark/session.py": {"require_same_minor(spark.version)"},
    "lakehouse/spark/class_archive.py": {'files.hint("rebalance", "k").mapInArrow(same, files.schema).collect()'},
}


def uses(path: str, text: str) -> list[str]:
    """Return the lines of a module that depend on the version of Spark."""
    lines = (INTERFACE.sub("", line).strip() for line in text.splitlines())
    return [f"{path}: {line}" for line in lines if DIFFERENT.search(line) and line not in ALLOWED.get(path, ())]


def test_only_the_modules_of_versions_depend_on_the_version_of_spark() -> None:
    parsed = [module for module in modules("lakehouse", "plugins", "dags") if not module.path.startswith(VERSIONS)]
    assert [line for module in parsed for line in uses(module.path, module.text)] == []


def test_no_module_tries_imports_of_pyspark() -> None:
    tried = re.compile(r"try:\n\s+(?:from|import) pyspark")
    assert [module.path for module in modules("lakehouse") if tried.search(module.text)] == []


def test_only_modules_of_versions_with_a_data_source_import_it() -> None:
    imports = re.compile(r"^(?:from|import) (?:pyspark\.sql\.datasource|lakehouse\.spark\.source\b)", re.MULTILINE)
    by_name = re.compile(r"^from lakehouse\.spark import .*\bsource\b", re.MULTILINE)
    paths = {m.path for m in modules("lakehouse", "plugins") if imports.search(m.text) or by_name.search(m.text)}
    # `source` imports `staged_writer`, and the module of 4.1 imports `stream_writer`.
    writers = {"lakehouse/spark/staged_writer.py", "lakehouse/spark/stream_writer.py"}
    assert paths == {"lakehouse/spark/source.py", f"{VERSIONS}v40.py", *writers}


def test_uses_of_a_version_are_seen() -> None:
    assert uses("a.py", "jvm.org.apache.spark.sql.classic.Dataset.ofRows(x)")
    assert uses("a.py", "if pyspark.__version__ < '4':")
    assert not uses("a.py", "spark_version().is_valid_utf8(text)")
