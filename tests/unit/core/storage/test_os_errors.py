"""Errors of the operating system are raised as errors of this package with the path and the cause."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lakehouse.cli.main import main
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import LakehouseError, RetryableError, UserError
from tests.support.syscalls import System, failing

CLASSES: dict[int, type[LakehouseError]] = {
    errno.ENOSPC: RetryableError,
    errno.EDQUOT: RetryableError,
    errno.EIO: RetryableError,
    errno.EINTR: RetryableError,
    errno.EACCES: UserError,
    errno.EROFS: UserError,
}
#: Errors for a file that another process may have deleted.
ANSWERS = (NotFoundError,)


def everything(storage: LocalStorage) -> None:
    """Call each method of the storage."""
    storage.put("a/put", b"1")
    storage.create("a/created", b"2")
    storage.get("a/put")
    storage.get_range("a/put", 0, 1)
    _, tag = storage.get_tagged("a/put")
    storage.create_guarded("a/guarded", b"5", "a/put", tag)
    storage.replace_if("a/put", b"3", tag)
    storage.delete_if("a/put", storage.get_tagged("a/put")[1])
    with storage.open_output("b/file") as file:
        file.write(b"4")
    storage.open_input("b/file").close()
    storage.list("")
    storage.list_dir("a")
    storage.list_names("a")
    storage.delete("a/created")
    storage.delete_many(["b/file", "a/guarded"])


@pytest.mark.parametrize("number", CLASSES, ids=errno.errorcode.get)
def test_local_storage_raises_no_bare_oserror_at_any_call(number: int, tmp_path: Path) -> None:
    with failing(System()) as whole:
        everything(LocalStorage(str(tmp_path / "whole")))
    raised = []
    for step in range(1, whole.steps + 1):
        with failing(System(errno=number, fail_at=step)):
            try:
                everything(LocalStorage(str(tmp_path / str(step))))
            except ANSWERS as answer:
                raise AssertionError(f"{whole.trace[step - 1]} looks like a missing file") from answer
            except LakehouseError as error:
                assert isinstance(error, CLASSES[number]), whole.trace[step - 1]
                assert os.strerror(number) in str(error)
                assert error.facts["path"]
                raised.append(step)
    assert len(raised) > whole.steps / 2


def test_scratch_directory_reports_a_full_disk_with_its_path() -> None:
    with (
        pytest.raises(RetryableError, match="disk is full") as raised,
        scratch_directory("lakehouse-test-") as directory,
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{directory}/spill")
    assert directory in str(raised.value)
    assert not os.path.exists(directory)


def test_command_line_reports_an_unwritable_file_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/reports/one.json")

    monkeypatch.setattr("lakehouse.cli.main._dispatch", full)
    assert main(["options"]) == RetryableError.exit_code
    shown = capsys.readouterr().err
    assert "disk is full at '/reports/one.json'" in shown
    assert "Traceback" not in shown
