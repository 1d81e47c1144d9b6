"""The fast path for few records of the metadata table has few doors."""

from __future__ import annotations

from tests.architecture.sources import modules
from tests.architecture.test_imports import imported

SMALL = "lakehouse/core/metadata/small"
#: The modules that choose between the fast path and the general code.
CALLERS = (
    "lakehouse/core/metadata/read/table.py",
    "lakehouse/core/metadata/services/compaction.py",
    "lakehouse/core/metadata/write/commit.py",
)


def test_only_three_modules_choose_the_fast_path_of_the_metadata_table() -> None:
    package = SMALL.replace("/", ".")
    callers = [
        module.path
        for module in modules("lakehouse")
        if not module.within(SMALL) and any(name.startswith(f"{package}.") for name in imported(module.tree))
    ]
    assert callers == list(CALLERS)


def test_refusal_of_the_fast_path_is_raised_and_caught_in_one_module() -> None:
    places = {
        module.path: count for module in modules("lakehouse") if (count := module.text.count("UnusualRecordError"))
    }
    assert places == {f"{SMALL}/records.py": 3}


def test_only_the_writer_of_hfiles_chooses_the_file_of_one_block() -> None:
    name = "lakehouse.core.format.hfile.one_block."
    users = [m.path for m in modules("lakehouse") if any(found.startswith(name) for found in imported(m.tree))]
    assert users == ["lakehouse/core/format/hfile/writer.py"]
