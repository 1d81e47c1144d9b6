"""`lakehouse table` and the commands of a catalog: clear answers to wrong flags, truncated output, names of tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.table.table import Table
from lakehouse.spec.contracts.policies import TablePolicies
from tests.unit.cli.test_framework import completed

ROWS = 25
#: Path of the table in the words of a case.
HERE = "HERE"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    table = Table.create(str(tmp_path / "orders"), name="orders", record_key=["id"])
    table.insert(pa.table({"id": [f"o{number:02}" for number in range(ROWS)], "fare": list(range(ROWS))}))
    return table


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("table read --table HERE --limit -1", ["--limit", "-1 is too small; give 1 or more, or `all`"]),
        ("table read --table HERE --limit 0", ["--limit", "0 is too small"]),
        ("table read --table HERE --limit ten", ["--limit", "'ten' is not a whole number"]),
        ("table read --table HERE --as-of 2020-01-01", ["before the first commit of the table, FIRST"]),
        ("table read --table HERE --columns idd", ["column 'idd' is not in the table", "Did you mean 'id'?"]),
        ("table read --table HERE --columns ,", ["--columns is empty"]),
        ("table read --table HERE --where ", ["--where is empty"]),
        ("table delete --table HERE --where ", ["--where is empty"]),
        ("table read --table HERE --begin earliest --as-of 2026", ["--as-of reads one version", "--begin reads"]),
        ("table read --table HERE --end 2026 --read-optimized", ["--read-optimized reads one", "--end reads"]),
        ("table read --table HERE --as-of 2026 --as-of-event-time 2026", ["give one of them"]),
        ("table raed --table HERE", ["'raed' is unknown", "Did you mean 'read'?"]),
        ("table read --tabel HERE", ["no flag '--tabel'", "Did you mean '--table'?"]),
        ("table read", ["lakehouse table read needs --table: A table spec (YAML), a table's location"]),
        ("table read HERE", ["unexpected argument", "give the table by a flag: --table HERE"]),
        ("table read --table HERE/..", ["is not a Hudi table", "HERE; open one of them"]),
        ("table read --table HERE/none", ["is not a Hudi table", "inside the table HERE"]),
        (
            "table create --name x --location HERE/x --record-key id --type MERGEONREAD",
            ["Did you mean 'MERGE_ON_READ'?"],
        ),
        ("table create --location HERE/x --record-key id", ["table create needs --name"]),
        ("table describe --table sales.orders", ["no table sales.orders"]),
        ("table update --table sales.orders", ["is not a table spec"]),
        ("policy set --service clean --set a=1", ["needs --table namespace.table, or --namespace"]),
        ("policy set --table a.b --namespace a --service clean --set a=1", ["and not both"]),
        ("policy set --table a.b --service clen --set a=1", ["Did you mean 'clean'?"]),
        ("policy set --table a.b --service clean --set a", ["--set 'a': expected name=value"]),
        ("policy show --table prod:a.b --catalog test", ["names the catalog 'prod', but --catalog names 'test'"]),
        ("compaction run --table a.b --interval-start 2026-01-01", ["needs both"]),
        ("compaction run --table a.b --run-id 1 --run-id 2", ["--run-id was given twice"]),
        ("compaction run --table a.b --dry-run --run-id 1", ["--run-id has no effect; leave it out"]),
        ("compaction run --table a.b --option hoodie.x", ["expected key=value"]),
        ("clean run --table a.b --pin 1", ["--pin works with --dry-run only"]),
        ("clustering plan --table HERE --sort-columns ", ["--sort-columns needs a value"]),
        ("ttl policy st", ["'st' is unknown; verbs are set, remove, list"]),
        ("publish signal --table a.b", ["needs --partition"]),
        ("ingest run", ["needs --table"]),
    ],
)
def test_wrong_flag_gets_one_paragraph_that_says_what_to_do(
    words: str, parts: list[str], table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    first = table.timeline.instants[0].requested
    assert main([word.replace(HERE, table.location) for word in words.split(" ")]) == 64
    shown = capsys.readouterr()
    assert shown.out == ""
    message = shown.err.splitlines()[-1]
    assert "Traceback" not in shown.err
    for part in parts:
        assert part.replace(HERE, table.location).replace("FIRST", first) in message, message


@pytest.mark.parametrize("output", ["text", "json"])
def test_read_says_that_rows_are_left_out(output: str, table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["table", "read", "--table", table.location, "--output", output]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1].startswith("20 of at least 21 rows shown; --limit N shows more")
    assert len(json.loads(shown.out)) == 20 if output == "json" else shown.out.count("\n") == 22
    for limit in (str(ROWS), "all"):
        assert main([*words, "--limit", limit]) == 0
        shown = capsys.readouterr()
        assert "rows shown" not in shown.err
        assert shown.out.count("o24") == 1


def test_commands_of_the_catalog_name_a_table_like_all_others(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> dict[str, object]:
        assert main([*words, "--output", "json"]) == 0, words
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    name = ("--table", "sales.orders")
    assert run("table", "register", *name, "--location", table.location)["table"] == "sales.orders"
    assert run("policy", "set", *name, "--service", "clean", "--set", "commits_retained=7")["changed"] is True
    shown = TablePolicies.from_mapping(run("policy", "show", *name))
    (clean,) = (policy for policy in shown.policies if policy.service == "clean")
    assert clean.options["hoodie.clean.commits.retained"] == "7"
    assert run("policy", "remove", *name, "--service", "clean")["changed"] is True
    assert run("services", "explain", "--table", "default:sales.orders")["table"] == "sales.orders"
    requested = run("services", "request", *name, "--service", "clean", "--by", "ada")
    assert (requested["table"], requested["service"]) == ("sales.orders", "clean")
    assert run("table", "history", *name)["table"] == "sales.orders"
    assert completed("table", "describe", "--table", "sal")[0] == "sales.orders"
    assert completed("services", "request", "--service", "comp") == ["compaction"]
    assert completed("clean", "due", "--option", "hoodie.clean.commits") == ["hoodie.clean.commits.retained="]
    assert run("table", "drop", *name)["files_deleted"] is False


def test_job_prints_a_text_or_the_json_of_its_report(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["clean", "run", "--table", table.location]
    assert main(words) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main([*words, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "nothing_to_do"
    assert main(["clean", "run", "--dry-run", "--table", table.location, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["service"] == "clean"


@pytest.mark.parametrize("words", [["--debug", "clean", "run"], ["clean", "run", "--debug"], ["clean", "run"]])
def test_traceback_of_a_failed_job_is_printed_only_with_debug(
    words: list[str], table: Table, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("lakehouse.cli.table_service.run_service", broken)
    assert main([*words, "--table", table.location]) == 70
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1].startswith("ZeroDivisionError: planted")
    assert ("Traceback" in shown) == ("--debug" in words)
    assert ("--debug shows its traceback" in shown) == ("--debug" not in words)


def test_create_accepts_the_short_names_of_table_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "t")
    words = ["table", "create", "--name", "t", "--location", place, "--record-key", "id", "--type", "MOR"]
    assert main([*words, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["location"] == place
    assert main(["table", "describe", "--table", place]) == 0
    assert "MERGE_ON_READ" in capsys.readouterr().out
