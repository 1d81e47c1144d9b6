"""The stage runner of `make test` and the installer of environments."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import environments, stages
from tests.stages import Stage
from tests.support.extended import EXTENDED, HALVED, SAMPLED, extended_tests
from tests.support.longest import LONGEST, by_length
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    monkeypatch.setattr(stages, "LOGS", tmp_path / "logs")
    return tmp_path / "logs"


def stage_of(script: str, name: str = "unit", skip: str = "") -> Stage:
    return Stage(name=name, text="some tests", command=(sys.executable, "-c", script), skip=skip)


def test_run_reports_the_counts_of_pytest(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = stages.run(stage_of("print('== 3 passed, 1 skipped in 2.10s ==')"), "[1 of 2]", echo=False)
    assert (result.outcome, result.detail) == ("passed", "3 passed, 1 skipped")
    shown = capsys.readouterr().out
    assert shown.startswith("[1 of 2] unit: passed in ") and shown.count("\n") == 1
    assert "in 2.10s" not in shown
    assert (logs / "unit.log").read_text() == "== 3 passed, 1 skipped in 2.10s ==\n"


def test_running_stage_shows_count_percent_and_the_current_file(logs: Path, tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    line = stages._Line("[3 of 7] unit", time.monotonic(), counts)
    assert line.text("collecting") == "[3 of 7] unit: 0 s  collecting"
    module = tmp_path / "test_many.py"
    module.write_text("import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_n(n): pass\n")
    for workers in ("0", "2"):
        counts.unlink(missing_ok=True)
        words = ["-m", "pytest", "-q", "-p", "tests.stage_progress", "-n", workers, "-c", os.devnull, str(module)]
        environ = {**os.environ, stages.PROGRESS: str(counts), "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *words], cwd=tmp_path, env=environ, check=True, capture_output=True)
        assert line.text("").startswith("[3 of 7] unit: 4 of 4 tests, 100 %, ")
        assert line.text("").endswith("test_many.py")


def test_ctrl_c_ends_make_test_quietly_and_stops_all_processes(tmp_path: Path) -> None:
    script = (
        # A process that was started in the background ignores Ctrl-C otherwise.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys; from tests import stages; from pathlib import Path\n"
        f"stages.ROOT = Path({str(tmp_path)!r}); stages.LOGS = stages.ROOT / 'logs'\n"
        "child = 'import time; time.sleep(300)'\n"
        "code = f'import subprocess, sys; p = subprocess.Popen([sys.executable, \\'-c\\', {child!r}]); '\n"
        "code += 'open(\\'pids\\', \\'w\\').write(str(p.pid)); p.wait()'\n"
        "stage = stages.Stage(name='unit', text='', command=(sys.executable, '-c', code))\n"
        "stages.sample_stages = lambda root: [stage, stage]\n"
        "sys.exit(stages.main([]))\n"
    )
    environ = {name: text for name, text in os.environ.items() if name != "CI"} | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        pids = tmp_path / "pids"
        assert until(lambda: pids.exists() and pids.read_text() != "", limit_s=60)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: unit was interrupted" in output and "Traceback" not in output
    assert until(lambda: not psutil.pid_exists(int(pids.read_text())), limit_s=10)


def test_run_shows_the_output_of_a_failed_stage(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = stages.run(stage_of("import sys; print('E assert 1 == 2'); sys.exit(3)"), "[1 of 1]", echo=False)
    assert (result.outcome, result.detail) == ("failed", "exit code 3")
    shown = capsys.readouterr().out
    assert "E assert 1 == 2" in shown
    assert "FAILED" in shown and "logs/unit.log" in shown


def test_run_echoes_all_output_in_ci(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages.run(stage_of("print('first'); print('1 passed in 0.1s')"), "[1 of 1]", echo=True)
    assert "first\n1 passed in 0.1s\n" in capsys.readouterr().out


def test_run_does_not_start_a_stage_with_a_reason_to_skip(logs: Path) -> None:
    result = stages.run(stage_of("raise SystemExit(1)", skip="no jar"), "[1 of 1]", echo=False)
    assert (result.outcome, result.detail) == ("skipped", "no jar")
    assert not (logs / "unit.log").exists()


def test_processes_of_a_stage_keep_the_bytecode_of_modules(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    stages.run(stage_of("import sys; print(sys.dont_write_bytecode)"), "[1 of 1]", echo=False)
    assert (logs / "unit.log").read_text() == "False\n"


def test_main_fails_if_a_stage_fails_and_prints_the_sums(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [
        stage_of("print('2 passed, 1 skipped in 0.1s')", "unit"),
        stage_of("print('1 failed, 4 passed in 0.1s'); raise SystemExit(1)", "property"),
    ]
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(stages, "sample_stages", lambda root: made)
    assert stages.main([]) == 1
    shown = capsys.readouterr().out
    assert "6 passed, 1 failed, 1 skipped" in shown.splitlines()
    assert "make test-all" in shown
    assert stages.main(["--only", "unit"]) == 0


def test_main_stops_without_environments(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [stage_of("raise SystemExit(2)", "environments"), stage_of("open('started', 'w')", "unit")]
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(stages, "all_stages", lambda *, in_ci: made)
    assert stages.main([]) == 1
    assert not (logs.parent / "started").exists()


def test_ci_leaves_out_extended_tests_and_runs_all_with_the_flag(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(stages, "all_stages", lambda *, in_ci: asked.append(in_ci) or [stage_of("")])
    monkeypatch.setenv("CI", "true")
    assert [stages.main([]), stages.main(["--all"])] == [0, 0]
    monkeypatch.delenv("CI")
    assert stages.main(["--all"]) == 0
    assert asked == [True, False, False]


def test_extended_tests_exist() -> None:
    for entry in EXTENDED:
        path, _, name = entry.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name.partition('[')[0]}(" in text, entry


def test_modules_with_fewer_tests_in_ci_exist() -> None:
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    for entry in (*HALVED, *SAMPLED):
        assert any(f"{module}::".startswith(entry.partition("::")[0]) for module in modules), entry


def test_every_second_function_of_a_halved_module_runs_with_all_its_cases() -> None:
    module = next(entry for entry in HALVED if entry.endswith(".py") and entry not in SAMPLED)
    cases = [f"{module}::test_{name}[{number}]" for name in "cab" for number in range(2)]
    assert extended_tests([*cases, "tests/unit/x.py::t"]) == {case for case in cases if "test_b" in case}
    assert extended_tests([f"{module}::test_single"]) == set()


def test_longest_modules_exist_and_start_first_in_their_order() -> None:
    for path in LONGEST:
        assert (ROOT / path).is_file(), path
    tests = ["tests/a.py::t", f"{LONGEST[3]}::t[1]", "tests/b.py::t", f"{LONGEST[1]}::t", f"{LONGEST[3]}::s"]
    assert by_length(tests) == [3, 1, 4, 0, 2]


def test_one_of_six_cases_of_a_function_runs_and_a_single_case_always() -> None:
    module = "tests/property/test_archive.py::test_"
    cases = {name: [f"{module}{name}[{number}]" for number in range(12)] for name in "abcdefghijklmnopqrst"}
    found = extended_tests(
        [*(case for some in cases.values() for case in some), f"{module}single", "tests/unit/x.py::t"]
    )
    kept = {name: [number for number, case in enumerate(some) if case not in found] for name, some in cases.items()}
    assert {tuple(numbers) for numbers in kept.values()} == {(n, n + 6) for n in range(6)}
    pair = [f"{module}pair[{number}]" for number in range(2)]
    assert len(extended_tests(pair)) == 1
    assert found <= {case for some in cases.values() for case in some}
    assert extended_tests([EXTENDED[0], "tests/unit/x.py::t"]) == {EXTENDED[0]}


@pytest.mark.parametrize("made", [stages.sample_stages(ROOT), stages.all_stages()], ids=["sample", "all"])
def test_stages_name_files_that_exist(made: list[Stage]) -> None:
    paths = [word.partition("::")[0] for stage in made for word in stage.command if word.startswith("tests/")]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_sample_names_a_test_that_exists() -> None:
    path, _, name = stages.AIRFLOW_SAMPLE.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_all_stages_run_each_folder_with_tests() -> None:
    folders = {path.parent.relative_to(ROOT).parts[1] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    words = [word.replace(".", "/") for stage in stages.all_stages() for word in stage.command]
    assert {folder for folder in folders if f"tests/{folder}" not in words} == set()


def test_stages_of_whole_folders_leave_out_the_tests_of_other_environments() -> None:
    commands = [stage.command for stage in stages.all_stages(in_ci=True) if stage.name == "hudi"]
    foreign = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py") if _needs_airflow(path)}
    assert foreign and commands
    for command in commands:
        assert {f"--ignore=tests/{name}" for name in foreign} <= set(command)


def _needs_airflow(path: Path) -> bool:
    return '\nif find_spec("airflow") is None' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "state"),
    [("", ""), (".... [ 37%]\n", "37 % of the tests"), ("a\nChecking types\n", "Checking types")],
)
def test_last_state_is_the_share_of_tests_or_the_last_line(text: str, state: str) -> None:
    assert stages.last_state(text) == state


def test_scripts_import_the_standard_library_only() -> None:
    script = "import sys; sys.path.insert(0, 'tests'); import stages, environments"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import os; os.chdir({str(ROOT)!r}); {script}"], check=False
    )
    assert done.returncode == 0


def test_phase_follows_the_output_of_pip(tmp_path: Path) -> None:
    phase = environments.Phase(tmp_path)
    phase.line("Collecting pyspark<4.2,>=4.1")
    phase.line("Downloading pyspark-4.1.4.tar.gz (434.0 MB)")
    assert (phase.name, phase.detail) == ("collecting", "1 packages, downloading pyspark-4.1.4.tar.gz (434.0 MB)")
    phase.line("Installing collected packages: py4j, pyspark")
    (tmp_path / "py4j-0.10.dist-info").mkdir()
    phase.poll()
    assert (phase.name, phase.detail) == ("installing", "1 of 2 packages")


def script_at(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("code", "installer"), [(0, "uv"), (2, "pip")])
def test_install_uses_uv_and_after_its_failure_pip(
    code: int, installer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = tmp_path / "venv"
    script_at(venv / "bin" / "python", "echo 'installed by pip' \"$@\"")
    script_at(tmp_path / "bin" / "uv", f"echo 'installed by uv' \"$@\"; exit {code}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    output = io.StringIO()
    assert environments.install(venv, ["a==1"], output) == 0
    assert output.getvalue().splitlines()[-1].startswith("    venv: ready after")
    assert (venv / "pip.log").read_text().splitlines()[-1].startswith(f"installed by {installer} ")
    assert (venv / "pip.log").read_text().splitlines()[-1].endswith(" a==1")


def test_install_prints_the_end_of_the_output_of_a_failed_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = tmp_path / "venv"
    script_at(venv / "bin" / "python", "echo 'Collecting nothing-here'\necho 'ERROR: No matching distribution'\nexit 1")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    output = io.StringIO()
    assert environments.install(venv, ["nothing-here"], output) == 1
    shown = output.getvalue()
    assert "venv: collecting, 1 packages, nothing-here" in shown
    assert "ERROR: No matching distribution" in shown
    assert (venv / "pip.log").exists()


def test_make_test_runs_the_stages() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        ["make", "-n", "test"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tests/stages.py" in done.stdout
