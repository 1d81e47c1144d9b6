"""Reports and embedded databases are for one user alone, also where another one was there first."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.jobs.report import write_report
from lakehouse.spec.contracts.job import JobReport, JobStatus
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.lock_providers import SqlAlchemyLockOptions
from lakehouse.spec.options.transaction import TransactionPolicy
from lakehouse.spec.private_files import own_folder, private_file, private_folder, read_own_file
from tests.support.tables import make_env

REPORT = JobReport(status=JobStatus.NOTHING_TO_DO, table="t")
#: What makes a folder, or takes one that is there.
FOLDERS: tuple[Callable[[Path], Path], ...] = (own_folder, lambda path: private_folder(path.parent, path.name))


@pytest.fixture(autouse=True)
def lax_umask() -> Iterator[None]:
    """Nothing is private by the mask."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def another_user(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes this process another user than the owner of all files."""
    mine = os.geteuid()
    return lambda: monkeypatch.setattr(os, "geteuid", lambda: mine + 1)


def mode(path: Path) -> int:
    """Return the permissions of a path."""
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("make", FOLDERS)
def test_a_folder_is_made_for_its_owner_and_an_open_one_is_closed(make: Callable[[Path], Path], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = tmp_path / "reports"
    assert mode(make(folder)) == 0o700
    folder.chmod(0o777)
    assert mode(make(folder)) == 0o700


@pytest.mark.parametrize("make", FOLDERS)
def test_a_folder_of_another_user_is_not_used(
    make: Callable[[Path], Path], tmp_path: Path, another_user: Callable[[], None]
) -> None:
    (tmp_path / "reports").mkdir(mode=0o777)
    another_user()
    with pytest.raises(UserError, match="belongs to the user"):
        make(tmp_path / "reports")


def test_a_named_root_may_be_a_link_of_ones_own_and_is_closed_to_everybody(
    tmp_path: Path, another_user: Callable[[], None]
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk").chmod(0o777)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    assert private_folder(tmp_path / "home") == tmp_path / "home"
    assert mode(tmp_path / "disk") == 0o775
    if os.geteuid() == 0:
        # What belongs to root is believed, so the link has to be somebody's.
        os.lchown(tmp_path / "home", 12345, -1)
    else:
        another_user()
    with pytest.raises(UserError, match="symbolic link of another user"):
        private_folder(tmp_path / "home")


@pytest.mark.parametrize("make", FOLDERS)
def test_a_folder_is_no_symbolic_link_and_no_file(make: Callable[[Path], Path], tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "reports").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="symbolic link"):
        make(tmp_path / "reports")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="not a folder"):
        make(tmp_path / "file")
    assert list((tmp_path / "victim").iterdir()) == []


def test_folders_above_a_private_one_are_nobody_elses_whatever_the_umask(tmp_path: Path) -> None:
    private_folder(tmp_path / "a" / "b" / "root", "c")
    write_report(tmp_path / "d" / "e" / "f" / "report.json", REPORT)
    made = sorted(tmp_path.rglob("*"))
    assert len(made) == 8
    assert [str(path) for path in made if path.stat().st_mode & 0o022] == []


def test_folders_below_a_private_one_are_private_as_well(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "new" / "reports", "dag", "run")
    assert [mode(path) for path in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3


def test_a_file_is_made_for_its_owner_and_no_link_is_followed(tmp_path: Path) -> None:
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


def test_only_a_file_of_ones_own_is_believed(tmp_path: Path, another_user: Callable[[], None]) -> None:
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


def test_a_report_is_private_and_replaces_a_link_instead_of_following_it(tmp_path: Path) -> None:
    victim, report = tmp_path / "victim", tmp_path / "reports" / "run" / "report.json"
    victim.write_text("kept")
    write_report(report, REPORT)
    assert (mode(report), mode(report.parent)) == (0o600, 0o700)
    report.unlink()
    report.symlink_to(victim)
    write_report(report, REPORT)
    assert victim.read_text() == "kept" and not report.is_symlink()
    assert [path.name for path in report.parent.iterdir()] == ["report.json"]


def test_the_embedded_catalog_is_private_with_all_its_files(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with load_catalog(f"sqlite:///{home}/catalog.db") as catalog:
        catalog.create_namespace("sales")
        assert {path.name for path in home.iterdir()} >= {"catalog.db", "catalog.db-wal"}
        assert {mode(path) for path in home.iterdir()} == {0o600}
    assert mode(home) == 0o700


def test_an_older_catalog_is_closed_to_others_and_one_behind_a_link_is_refused(tmp_path: Path) -> None:
    load_catalog(f"sqlite:///{tmp_path}/catalog.db").close()
    (tmp_path / "catalog.db").chmod(0o644)
    load_catalog(f"sqlite:///{tmp_path}/catalog.db").close()
    assert mode(tmp_path / "catalog.db") == 0o600
    (tmp_path / "link.db").symlink_to(tmp_path / "catalog.db")
    with pytest.raises(UserError, match="symbolic link"):
        load_catalog(f"sqlite:///{tmp_path}/link.db")


def test_the_embedded_database_of_locks_is_private(tmp_path: Path) -> None:
    policy = TransactionPolicy(lock=LockPolicy.of(SqlAlchemyLockOptions(url=f"sqlite:///{tmp_path}/locks.db")))
    with table_lock(make_env(), policy):
        assert mode(tmp_path / "locks.db") == 0o600
