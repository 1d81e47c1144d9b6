"""The file with the secrets of a driver on another host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lakehouse.cli.main import main
from lakehouse.errors import UserError
from lakehouse.spec.credentials_file import CREDENTIALS, credentials_file, load_credentials


def test_file_is_private_and_deleted_after_the_block() -> None:
    with credentials_file({"AWS_SECRET_ACCESS_KEY": "s"}) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        environ = {CREDENTIALS: str(path), "PATH": "/bin"}
        load_credentials(environ)
        assert environ == {"AWS_SECRET_ACCESS_KEY": "s", "PATH": "/bin"}
        assert not path.exists()
    assert not path.parent.exists()


def test_variables_of_the_environment_are_kept_and_none_is_needed() -> None:
    with credentials_file({"AWS_REGION": "a", "AWS_PROFILE": "p"}) as path:
        environ = {CREDENTIALS: str(path), "AWS_REGION": "b"}
        load_credentials(environ)
    assert environ == {"AWS_REGION": "b", "AWS_PROFILE": "p"}
    load_credentials(environ)
    assert environ == {"AWS_REGION": "b", "AWS_PROFILE": "p"}


@pytest.mark.parametrize("content", [None, "secret {", "[1]"])
def test_unreadable_file_is_a_user_error_without_its_content(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "c.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=r"cannot be read: (No such file|it is not a JSON object)") as caught:
        load_credentials({CREDENTIALS: str(path)})
    assert "secret" not in str(caught.value)


def test_command_loads_the_file_before_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SENTINEL", raising=False)
    with credentials_file({"SENTINEL": "here"}) as path:
        monkeypatch.setenv(CREDENTIALS, str(path))
        assert main(["--version"]) == 0
    assert os.environ.pop("SENTINEL") == "here"
