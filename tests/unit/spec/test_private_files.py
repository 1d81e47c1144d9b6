"""Reports and embedded databases are private to one user, also if another user created the folder or a link."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.lock_providers import SqlAlchemyLockOptions
from lakehouse.spec.options.transaction import TransactionPolicy
from lakehouse.spec.private_files import own_folder, private_file, private_folder, read_own_file
from lakehouse.spec.report_store import ReportFile
from tests.support.tables import make_env

REPORT = IngestReport(status=JobStatus.NOTHING_TO_DO, table="t")
#: Functions that create a folder or use an existing one.
FOLDERS: tuple[Callable[[Path], Path], ...] = (own_folder, lambda path: private_folder(path.parent, path.name))


@pytest.fixture(autouse=True)
def lax_umask() -> Iterator[None]:
    """A umask that makes no file private."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def another_user(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that makes this process run as another user than the owner of all files."""
    mine = os.geteuid()
    return lambda: monkeypatch.setattr(os, "geteuid", lambda: mine + 1)


def mode(path: Path) -> int:
    """Return the permissions of a path."""
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("make", FOLDERS)
def test_folder_is_private_to_its_owner_even_if_it_was_open(make: Callable[[Path], Path], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = tmp_path / "reports"
    assert mode(make(folder)) == 0o700
    folder.chmod(0o777)
    assert mode(make(folder)) == 0o700


@pytest.mark.parametrize("make", FOLDERS)
def test_folder_of_another_user_is_refused(
    make: Callable[[Path], Path], tmp_path: Path, another_user: Callable[[], None]
) -> None:
    (tmp_path / "reports").mkdir(mode=0o777)
    another_user()
    with pytest.raises(UserError, match="belongs to the user"):
        make(tmp_path / "reports")


def test_root_folder_can_be_an_own_link_and_is_not_writable_by_others(
    tmp_path: Path, another_user: Callable[[], None]
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk").chmod(0o777)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    assert private_folder(tmp_path / "home") == tmp_path / "home"
    assert mode(tmp_path / "disk") == 0o775
    if os.geteuid() == 0:
        # Links of root are trusted, so the link gets another owner.
        os.lchown(tmp_path / "home", 12345, -1)
    else:
        another_user()
    with pytest.raises(UserError, match="symbolic link of another user"):
        private_folder(tmp_path / "home")


@pytest.mark.parametrize("make", FOLDERS)
def test_folder_that_is_a_symbolic_link_or_a_file_is_refused(make: Callable[[Path], Path], tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "reports").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="symbolic link"):
        make(tmp_path / "reports")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="not a folder"):
        make(tmp_path / "file")
    assert list((tmp_path / "victim").iterdir()) == []


def test_folders_above_a_private_one_are_not_writable_by_others_with_any_umask(tmp_path: Path) -> None:
    private_folder(tmp_path / "a" / "b" / "root", "c")
    ReportFile(tmp_path / "d" / "e" / "f" / "report.json").write(REPORT)
    created = sorted(tmp_path.rglob("*"))
    assert len(created) == 8
    assert [str(path) for path in created if path.stat().st_mode & 0o022] == []


def test_folders_below_a_private_one_are_also_private(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "new" / "reports", "dag", "run")
    assert [mode(path) for path in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3


def test_private_file_has_no_access_for_others_and_follows_no_link(tmp_path: Path) -> None:
    private_file(tmp_path / "new")
    (tmp_path / "old").write_text("kept")
    private_file(tmp_path / "old")
    assert (mode(tmp_path / "new"), mode(tmp_path / "old")) == (0o600, 0o600)
    assert (tmp_path / "old").read_text() == "kept"
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(UserError, match="cannot be used"):
            private_file(tmp_path / name)
    assert not (tmp_path / "victim").exists()


def test_private_file_keeps_the_locks_of_this_process(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    private_file(path)
    take = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with path.open("r+") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        private_file(path)
        other = subprocess.run([sys.executable, "-c", take, path], capture_output=True, text=True, check=False)
    assert "BlockingIOError" in other.stderr
    assert subprocess.run([sys.executable, "-c", take, path], check=False).returncode == 0


def test_file_of_another_user_or_behind_a_link_is_not_read(tmp_path: Path, another_user: Callable[[], None]) -> None:
    (tmp_path / "report").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "report")
    assert read_own_file(tmp_path / "report") == "mine"
    with pytest.raises(FileNotFoundError):
        read_own_file(tmp_path / "gone")
    with pytest.raises(UserError, match="symbolic link"):
        read_own_file(tmp_path / "link")
    another_user()
    with pytest.raises(UserError, match="not a file of this user"):
        read_own_file(tmp_path / "report")


def test_report_is_private_and_replaces_a_link_instead_of_following_it(tmp_path: Path) -> None:
    victim, report = tmp_path / "victim", tmp_path / "reports" / "run" / "report.json"
    victim.write_text("kept")
    ReportFile(report).write(REPORT)
    assert (mode(report), mode(report.parent)) == (0o600, 0o700)
    report.unlink()
    report.symlink_to(victim)
    ReportFile(report).write(REPORT)
    assert victim.read_text() == "kept" and not report.is_symlink()
    assert [path.name for path in report.parent.iterdir()] == ["report.json"]


def test_files_of_an_embedded_catalog_are_private(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with load_catalog(f"sqlite:///{home}/catalog.db") as catalog:
        catalog.create_namespace("sales")
        assert {path.name for path in home.iterdir()} >= {"catalog.db", "catalog.db-wal"}
        assert {mode(path) for path in home.iterdir()} == {0o600}
    assert mode(home) == 0o700


def test_older_catalog_becomes_private_and_one_behind_a_link_is_refused(tmp_path: Path) -> None:
    load_catalog(f"sqlite:///{tmp_path}/catalog.db").close()
    (tmp_path / "catalog.db").chmod(0o644)
    load_catalog(f"sqlite:///{tmp_path}/catalog.db").close()
    assert mode(tmp_path / "catalog.db") == 0o600
    (tmp_path / "link.db").symlink_to(tmp_path / "catalog.db")
    with pytest.raises(UserError, match="symbolic link"):
        load_catalog(f"sqlite:///{tmp_path}/link.db")


def test_embedded_lock_database_is_private(tmp_path: Path) -> None:
    policy = TransactionPolicy(lock=LockPolicy.of(SqlAlchemyLockOptions(url=f"sqlite:///{tmp_path}/locks.db")))
    with table_lock(make_env(), policy):
        assert mode(tmp_path / "locks.db") == 0o600
