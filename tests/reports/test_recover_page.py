"""The page how-to/recover-a-failed-run.md: each case is provoked, and its commands recover from it.

The cases of ingestions need Spark and are in `test_recover_ingestions.py`, that of Airflow's log is in
`tests/airflow/test_killed_job_log.py`.
"""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table, errors, load_catalog
from lakehouse.core.storage.local import LocalStorage
from lakehouse.errors import INTERRUPTED, ConflictError, JobStoppedError, LakehouseError, RetryableError
from lakehouse.model.instant import Action
from tests.support.recovery import Case, Shell, cases, exit_codes, shows

KILLED = 128 + signal.SIGKILL
CASES = cases()
#: Cases whose tests are in other modules, by the comment before their texts.
ELSEWHERE = ("<!-- case: spark -->", "<!-- case: database -->", "<!-- case: airflow -->")
OPTIMISTIC = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.num.retries.on.conflict.failures": "0",
}
#: A compaction that says when its plan is executed, and then waits.
COMPACTION = """
import sys, time
from lakehouse.cli.main import main
from lakehouse.core.storage.local import LocalStorage

create = LocalStorage.create

def wait_after_start(storage, path, data, **options):
    made = create(storage, path, data, **options)
    if path.endswith(".compaction.inflight"):
        print("works", flush=True)
        time.sleep(300)
    return made

LocalStorage.create = wait_after_start
sys.exit(main(["compaction", "run", "--table", "shop.orders", "--force", "--run-id", sys.argv[1]]))
"""


class Shop:
    """A merge-on-read table in a catalog, and the commands of a shell in its folder."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.table = Table.create(
            "shop/orders",
            name="shop.orders",
            record_key=["order_id"],
            ordering="updated_at",
            table_type="MERGE_ON_READ",
            options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"},
        )
        for number in range(4):
            self.write(number)
        code, output = shell.run("lakehouse table register --table shop.orders --location shop/orders")
        assert code == 0, output

    def write(self, number: int, **options: str) -> None:
        """Update the orders `a` and `b`."""
        rows = pa.table({"order_id": ["a", "b"], "fare": [1.0, 2.0], "updated_at": [number, number]})
        Table.open("shop/orders", options=options).upsert(rows)

    def keys(self) -> list[str]:
        """Return the orders that readers see."""
        return sorted(Table.open("shop/orders").scan(columns=["order_id"]).to_arrow()["order_id"].to_pylist())


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    return Shell(capsys)


@pytest.fixture
def shop(shell: Shell) -> Shop:
    return Shop(shell)


def test_page_has_a_section_for_each_exit_code() -> None:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, LakehouseError)]
    codes = {each.exit_code for each in classes}
    assert exit_codes() == sorted({*codes, INTERRUPTED, KILLED})
    described = {(case.exit_code, name) for case in CASES.values() for name in _names(case.text + case.shown)}
    missing = {(each.exit_code, each.__name__) for each in classes} - described
    assert missing == set()


def _names(text: str) -> set[str]:
    return {name for name, _ in inspect.getmembers(errors, inspect.isclass) if name in text}


def test_each_case_of_the_page_is_provoked_by_a_test() -> None:
    here = {case for case, text in CASES.items() if not any(mark in text.text for mark in ELSEWHERE)}
    source = Path(__file__).read_text(encoding="utf-8")
    assert [case for case in sorted(here) if f'CASES["{case}"]' not in source] == []
    spark = Path(__file__).with_name("test_recover_ingestions.py").read_text(encoding="utf-8")
    others = {case for case, text in CASES.items() if any(mark in text.text for mark in ELSEWHERE[:2])}
    assert [case for case in sorted(others) if f'CASES["{case}"]' not in spark] == []


def test_wrong_setting_is_named_with_its_line(shell: Shell) -> None:
    case, spec = CASES["A setting is wrong"], Path("tables/orders.yaml")
    Path("landing/orders").mkdir(parents=True)
    spec.parent.mkdir()
    spec.write_text(
        "table: shop.orders\nlocation: shop/orders\nrecord_key: [order_id]\nschema: {order_id: string}\ningest:\n"
        "  path: landing/orders/\n  format: csv\n  new_colum: add\n"
    )
    shows(case, shell.run("lakehouse ingest run --table tables/orders.yaml"))
    spec.write_text(spec.read_text().replace("new_colum:", "new_column:"))
    shell.recover(case)


def test_cleaned_history_names_the_earliest_time_that_can_be_read(shop: Shop) -> None:
    case, first = CASES["A clean removed the history"], shop.table.commits()[0][0].requested
    assert shop.shell.run("lakehouse compaction run --table shop.orders --force")[0] == 0
    for number in range(4, 9):
        shop.write(number)
        assert shop.shell.run("lakehouse compaction run --table shop.orders --force")[0] == 0
    retained = "--option hoodie.clean.commits.retained=1"
    assert shop.shell.run(f"lakehouse clean run --table shop.orders --force {retained}")[0] == 0
    shows(case, shop.shell.run(f"lakehouse table read --table shop.orders --as-of {first}"))
    shop.shell.recover(case)


def test_damaged_file_is_found_and_undone_by_a_restore(shop: Shop) -> None:
    case = CASES["A file cannot be read"]
    assert shop.shell.run("lakehouse compaction run --table shop.orders --force")[0] == 0
    before = shop.table.commits()[2][0].requested
    file = max(Path("shop/orders").glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    file.write_bytes(file.read_bytes()[:300])
    shows(case, shop.shell.run("lakehouse table read --table shop.orders"))
    shop.write(9)
    shows(case, shop.shell.run("lakehouse compaction run --table shop.orders --force"))
    validated, _ = shop.shell.recover(case, INSTANT=before)
    assert file.name in validated and "copy the file back from a backup" in validated
    assert shop.keys() == ["a", "b"]


def test_unsupported_table_version_is_refused(shop: Shop) -> None:
    case = CASES["The table uses a feature that is not supported"]
    properties = Path("shop/orders/.hoodie/hoodie.properties")
    supported = properties.read_text()
    properties.write_text(supported.replace("hoodie.table.version=9", "hoodie.table.version=5"))
    shows(case, shop.shell.run("lakehouse clean run --table shop.orders"))
    properties.write_text(supported)
    shop.shell.recover(case)


def test_exception_of_another_package_is_reported_as_unexpected(shell: Shell) -> None:
    case = CASES["An exception of another package"]
    command = (
        "import sys\nfrom lakehouse.platform.jobs.run import run_job\n"
        "from lakehouse.spec.job_command import IngestCommand\n"
        "def work(command): import no_such_module\n"
        "command = IngestCommand(table='shop.orders')\n"
        "sys.exit(run_job(command, work, lambda command: ()))"
    )
    shows(case, _ended(subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)))
    shell.recover(case)


def test_conflict_names_the_winner(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    case, options = CASES["Another writer won"], {**OPTIMISTIC, "hoodie.index.type": "SIMPLE"}
    table = Table.create("shop/items", name="shop.items", record_key=["order_id"], ordering="updated_at")
    rows = pa.table({"order_id": ["a"], "fare": [1.0], "updated_at": [1]})
    table.upsert(rows)
    _after_start(monkeypatch, lambda: Table.open("shop/items", options=options).upsert(rows))
    with pytest.raises(ConflictError) as raised:
        Table.open("shop/items", options=options).upsert(rows)
    shows(case, (raised.value.exit_code, f"ConflictError: {raised.value}"))
    assert raised.value.winner in raised.value.message
    (timeline,) = shop.shell.recover(case)
    assert "completed" in timeline


def test_active_write_of_a_single_writer_is_reported(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    case, found = CASES["A write is active"], list[tuple[int, str]]()
    other = "lakehouse table delete --table shop.orders --where \"order_id = 'a'\""
    _after_start(monkeypatch, lambda: found.append(shop.shell.run(other)))
    shop.write(9)
    shows(case, found[0])
    shop.shell.recover(case)
    assert shop.keys() == ["a", "b"]


def test_busy_table_names_the_other_run(shop: Shop) -> None:
    case = CASES["Another run holds the table"]
    with load_catalog() as catalog:
        entry, run = catalog.entry("shop.orders"), "scheduled__2026-03-01"
        with catalog.leases.held("shop.orders/compaction", run, 60_000):
            catalog.history.start(run, entry.id, "compaction")
            shows(case, shop.shell.run("lakehouse compaction run --table shop.orders --force"))
            (status,) = shop.shell.recover(case)
    assert "shop.orders" in status


def test_lost_reply_of_a_commit_leaves_a_completed_instant(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    case, lost = CASES["The reply of the commit was lost"], list[str]()
    create, get = LocalStorage.create, LocalStorage.get

    def creates(storage: LocalStorage, path: str, data: bytes, *, unique: bool = False) -> bool:
        made = create(storage, path, data, unique=unique)
        if path.startswith(".hoodie/timeline/") and path.endswith("commit") and "_" in path.rpartition("/")[2]:
            lost.append(path)
            raise RetryableError(f"{path}: Connection reset by peer")
        return made

    def gets(storage: LocalStorage, path: str) -> bytes:
        if lost:
            raise RetryableError(f"{path}: Connection reset by peer")
        return get(storage, path)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "create", creates)
        patched.setattr(LocalStorage, "get", gets)
        command = "lakehouse table delete --table shop/orders --where \"order_id = 'b'\""
        shows(case, shop.shell.run(command))
    (timeline,) = shop.shell.recover(case)
    requested = lost[0].rpartition("/")[2].partition("_")[0]
    (line,) = [line for line in timeline.splitlines() if line.startswith(requested)]
    assert "completed" in line
    assert shop.keys() == ["a"]


@pytest.mark.parametrize(
    ("case", "number"),
    [
        (CASES["The job was stopped"], signal.SIGTERM),
        (CASES["Ctrl-C in a shell"], signal.SIGINT),
        (CASES["The process was killed"], signal.SIGKILL),
    ],
    ids=["SIGTERM", "SIGINT", "SIGKILL"],
)
def test_ended_service_continues_with_its_plan(shop: Shop, case: Case, number: signal.Signals) -> None:
    run = "services.compaction/manual__2026-03-01/run.0"
    process = subprocess.Popen(
        [sys.executable, "-c", COMPACTION, run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "works\n"
    process.send_signal(number)
    output, errors_printed = process.communicate(timeout=60)
    if number is signal.SIGKILL:
        # A shell and Spark's operator show 128 + 9.
        assert 128 - process.returncode == case.exit_code and "Error" not in output + errors_printed
        assert "128 + 9" in case.text
    else:
        shows(case, (process.returncode, output + errors_printed))
    requested = [plan.requested for plan in Table.open("shop/orders").timeline.where(action=Action.COMPACTION)]
    outputs = shop.shell.recover(case, RUN=run)
    assert requested and requested[0] in outputs[-1]
    assert shop.keys() == ["a", "b"]


def test_stopped_job_has_the_code_of_the_page() -> None:
    assert JobStoppedError.exit_code == CASES["The job was stopped"].exit_code


def _after_start(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Run `other` once, after the next write has created its inflight file."""
    create = LocalStorage.create

    def creates(storage: LocalStorage, path: str, data: bytes, *, unique: bool = False) -> bool:
        made = create(storage, path, data, unique=unique)
        if path.startswith(".hoodie/timeline/") and path.endswith(".inflight"):
            monkeypatch.setattr(LocalStorage, "create", create)
            other()
        return made

    monkeypatch.setattr(LocalStorage, "create", creates)


def _ended(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    return done.returncode, done.stdout + done.stderr
