"""hoodie.properties while another process updates it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.timeline.table_properties import PROPERTIES, PROPERTIES_BACKUP, read_properties, update_properties
from lakehouse.errors import CorruptTableError

OLD = b"#x\nhoodie.table.name=orders\nhoodie.table.version=9\n"
NEW = b"#x\nhoodie.archivelog.folder=history\nhoodie.table.name=orders\nhoodie.table.version=9\n"


def env_of(root: Path, main: bytes | None, backup: bytes | None) -> Env:
    """Return the environment of a table with these files."""
    (root / ".hoodie").mkdir()
    for path, data in ((PROPERTIES, main), (PROPERTIES_BACKUP, backup)):
        if data is not None:
            (root / path).write_bytes(data)
    return Env(storage=open_storage(str(root)))


@pytest.mark.parametrize("length", [None, 0, 10, NEW.index(b"\n", 5) + 1, len(NEW) - 3])
def test_backup_is_used_while_the_new_file_is_missing_or_incomplete(length: int | None, tmp_path: Path) -> None:
    env = env_of(tmp_path, None if length is None else NEW[:length], OLD)
    assert read_properties(env.storage) == {"hoodie.table.name": "orders", "hoodie.table.version": "9"}


@pytest.mark.parametrize("length", [None, 0, 10])
def test_update_after_an_interrupted_update_keeps_all_properties(length: int | None, tmp_path: Path) -> None:
    env = env_of(tmp_path, None if length is None else NEW[:length], OLD)
    update_properties(env, {"a": "1", "b": None})
    assert read_properties(env.storage) == {"hoodie.table.name": "orders", "hoodie.table.version": "9", "a": "1"}
    assert not (tmp_path / PROPERTIES_BACKUP).exists()


def test_complete_file_is_used_although_its_backup_remains(tmp_path: Path) -> None:
    found = read_properties(env_of(tmp_path, NEW, OLD).storage)
    assert found is not None and found["hoodie.archivelog.folder"] == "history"


def test_file_that_becomes_complete_between_the_reads_is_used(tmp_path: Path) -> None:
    env = env_of(tmp_path, b"", None)
    inner = env.storage

    class Racing:
        """Another process completes the main file, and deletes the backup, before the backup is read."""

        def get(self, path: str) -> bytes:
            if path == PROPERTIES_BACKUP:
                inner.put(PROPERTIES, NEW)
            return inner.get(path)

    found = read_properties(Racing())  # type: ignore[arg-type]
    assert found is not None and found["hoodie.archivelog.folder"] == "history"


def test_file_of_an_old_table_without_version_is_read(tmp_path: Path) -> None:
    env = env_of(tmp_path, b"hoodie.table.name=orders", None)
    assert read_properties(env.storage) == {"hoodie.table.name": "orders"}


def test_update_of_an_empty_file_without_backup_is_refused(tmp_path: Path) -> None:
    env = env_of(tmp_path, b"", None)
    with pytest.raises(CorruptTableError, match=r"has no hoodie.table.name, and there is no backup .*Restore the file"):
        update_properties(env, {"a": "1"})
    assert (tmp_path / PROPERTIES).read_bytes() == b""


def test_update_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        update_properties(env_of(tmp_path, None, None), {"a": "1"})
    assert read_properties(open_storage(str(tmp_path))) is None
