"""Only `core.timeline.file_deletions` deletes files whose names come from metadata, because it checks each name."""

from __future__ import annotations

import ast

from tests.architecture.sources import Module, modules

VERBS = ("delete", "delete_many", "delete_if", "rmtree", "rmdir", "removedirs")
#: Modules that delete files without it, and why the names are trusted.
ALLOWED = {
    "lakehouse/core/storage": "implements the calls",
    "lakehouse/core/timeline/file_deletions.py": "implements the checked deletion",
    "lakehouse/core/timeline/timeline_store.py": "names are made by `instant_name`, which checks instants",
    "lakehouse/core/timeline/archived_timeline.py": "names are listed in the archive folder and parsed",
    "lakehouse/core/timeline/version_change.py": "names are listed in the timeline folder and parsed",
    "lakehouse/core/operations/version/change_version.py": "names are listed in the timeline folder and parsed",
    "lakehouse/core/metadata/write/drop.py": "empty folders, whose names are listed",
    "lakehouse/core/timeline/locks": "the file of a lock, whose name is an option of the caller",
    "lakehouse/core/timeline/publications.py": "manifests and copies, whose paths are checked there",
    "lakehouse/core/operations/services/partition_purge.py": "a whole table; names come from a listing",
    "lakehouse/sql/run_writes.py": "rows of a table, by Table.delete",
    "lakehouse/platform/sources/dead_letters.py": "dead letters of an attempt, in its own folder outside of tables",
    "lakehouse/platform/sources/databases/staging.py": "staged files of passes, in a folder outside of tables",
    "lakehouse/platform/export": "metadata of views, in two folders; the names are computed or match a pattern",
    "lakehouse/platform/jobs/report_stores.py": "documents of a job with constant names, outside of tables",
    "lakehouse/platform/doctor/storage_checks.py": "the temporary file that the check created",
}


def deleting_calls(module: Module) -> list[str]:
    """Return the calls of `module` that delete files."""
    return [
        f"{module.path}:{node.lineno}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VERBS
    ]


def test_only_allowed_modules_delete_files_without_the_checked_function() -> None:
    found = [
        call for m in modules("lakehouse", "plugins", "dags") if not m.within(*ALLOWED) for call in deleting_calls(m)
    ]
    assert found == []


def test_every_allowed_module_deletes_files() -> None:
    deleting = [module for module in modules("lakehouse") if deleting_calls(module)]
    assert [name for name in ALLOWED if not any(module.within(name) for module in deleting)] == []


def test_a_planted_deletion_is_found() -> None:
    module = Module.of("lakehouse/x.py", "def f(storage, plan):\n    storage.delete_many(plan.paths)\n")
    assert deleting_calls(module) == ["lakehouse/x.py:2"]
