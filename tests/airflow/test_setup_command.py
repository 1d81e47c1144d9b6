"""`airflow lakehouse setup` without a scheduler: pools of specs and of options, and wrong values."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import UserError
from lakehouse_airflow.pools import INGEST, POOLS, parse_slots, slots_of
from lakehouse_airflow.setup_command import commands
from lakehouse_airflow.setup_deployment import needed_pools, pool_facts, setup

SPEC = "table: {name}\nlocation: /lake/{name}\nrecord_key: id\ningest: {{path: /landing, pool: {pool}}}\n"


def arguments(*words: str) -> Namespace:
    """Parse words as the `airflow` command does."""
    from airflow.cli.cli_parser import get_parser

    return get_parser().parse_args(["lakehouse", "setup", *words])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: None) -> Path:
    monkeypatch.setenv("LAKEHOUSE_REPORTS", str(tmp_path / "reports"))
    monkeypatch.setenv("LAKEHOUSE_SPECS", str(tmp_path / "specs"))
    (tmp_path / "specs").mkdir()
    return tmp_path


def test_setup_creates_pools_of_options_variables_and_specs(place: Path, capsys: Any, monkeypatch: Any) -> None:
    for name in ("a", "b"):
        (place / "specs" / f"{name}.yaml").write_text(SPEC.format(name=name, pool="setup_of_specs"))
    (place / "specs" / "broken.yaml").write_text("table: x\n")
    monkeypatch.setenv("LAKEHOUSE_PUBLISH_SLOTS", "7")
    setup(arguments("--ingest-slots", "5", "--pool", "setup_by_hand=-1"))
    printed = capsys.readouterr().out
    assert "pool setup_of_specs: created with 5 slots" in printed
    assert "pool setup_by_hand: created with -1 slots" in printed
    assert "pool lakehouse_publish: " in printed
    assert pool_facts().slots.items() >= {"setup_of_specs": 5, "setup_by_hand": -1}.items()
    assert (place / "reports").stat().st_mode & 0o777 == 0o700
    setup(arguments("--pool", "setup_by_hand=3"))
    assert "pool setup_by_hand: exists with -1 slots, not changed" in capsys.readouterr().out


def test_needed_pools_take_slots_from_flag_then_variable_then_default(place: Path) -> None:
    environ = {"LAKEHOUSE_INGEST_SLOTS": "3", "LAKEHOUSE_PUBLISH_SLOTS": "9"}
    found = {pool.name: pool.slots for pool in needed_pools({"lakehouse_publish": "6"}, (), (), environ)}
    assert [found[setting.name] for setting in POOLS] == [3, 2, 6, 2]


@pytest.mark.parametrize("text", ["0", "-2", "many", "1.5"])
def test_slots_that_no_pool_can_have_are_refused_with_the_flag(text: str) -> None:
    with pytest.raises(UserError, match="--ingest-slots"):
        slots_of(INGEST, text, {})
    with pytest.raises(UserError, match="LAKEHOUSE_INGEST_SLOTS"):
        slots_of(INGEST, None, {"LAKEHOUSE_INGEST_SLOTS": text})
    assert parse_slots("-1", "x") == -1


def test_wrong_pool_ends_the_command_with_its_syntax(place: Path) -> None:
    with pytest.raises(SystemExit, match="write NAME=SLOTS"):
        setup(arguments("--pool", "big_tables"))


def test_command_has_one_flag_for_each_pool() -> None:
    (group,) = commands()
    (command,) = group.subcommands
    flags = {flag for argument in command.args for flag in argument.flags}
    assert {setting.flag for setting in POOLS} <= flags
