"""The first hour of a new user, played: `make first-hour`.

    clone        the project, with the environments of this checkout
    make demo    the table "What changed" has all chapters
    make ui      the Fleet page is filled within 60 s after it opens
    Request      one click heals the table of small files that the demo left alone
    Alarms       the alarm of this table is open before, and resolved after
    Ctrl-C       no process is left

Each step is printed with its time, and each page is saved as a picture. A step that fails ends the script.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lakehouse.demo.story import CLUSTERED, EVENTS, GPS, POSITIONS, RATINGS
from tests.adoption.demo_session import Clone, call, clone, token
from tests.support.browser import Page, browser

CHAPTERS = (
    "Small files",
    "Query",
    "Alarm",
    "Log backlog",
    "Late data",
    "Schema change",
    "Bad write",
    "Publication",
    "Late events",
    "Bad record",
)
#: Seconds: the demo with environments that exist, the Fleet page, and a request until its end. The scheduler has a pass
#: every five minutes.
DEMO_S, FILLED_S, HEALED_S = 300.0, 60.0, 600.0
#: Rows of the Fleet page that show no state yet.
_EMPTY = (
    "[...document.querySelectorAll('tbody tr')].filter(r => /not (looked at|checked) yet/.test(r.innerText)).length"
)
_ROWS = "document.querySelectorAll('tbody tr').length"


def main(words: list[str]) -> int:
    """Play the path and return the exit code."""
    parser = argparse.ArgumentParser(prog="make first-hour", description="Play the first hour of a new user.")
    parser.add_argument("--folder", type=Path, help="where to clone; a temporary folder by default")
    parser.add_argument("--pictures", type=Path, default=Path("build/first-hour"), help="folder of pictures and logs")
    parser.add_argument("--slow", type=float, default=1.0, help="factor of all time limits, for a loaded machine")
    parser.add_argument("--from-pages", action="store_true", help="the demo has run in --folder: begin with its pages")
    given = parser.parse_args(words)
    given.pictures.mkdir(parents=True, exist_ok=True)
    folder = given.folder or _open_folder() / "lakehouse"
    hour = _Hour(clone(folder), given.pictures, given.slow)
    if not given.from_pages:
        hour.demo()
    with hour.clone.pages(given.pictures / "ui.log") as url, browser(given.pictures / "profile") as page:
        page.log_in(url, token(url))
        hour.fleet(page, url)
        hour.heal(page, url)
        hour.resolved(page, url)
    hour.show("Ctrl-C: no process is left")
    return 0


def _open_folder() -> Path:
    """Create a temporary folder that PostgreSQL's user may enter; otherwise the demo's Airflow has SQLite."""
    folder = Path(tempfile.mkdtemp(prefix="first-hour-"))
    folder.chmod(0o755)
    return folder


class _Hour:
    """The steps, with the time of each."""

    def __init__(self, cloned: Clone, pictures: Path, slow: float) -> None:
        self.clone, self.pictures, self.slow = cloned, pictures, slow
        self._started = time.monotonic()

    def show(self, text: str) -> None:
        """Print a step that is done."""
        print(f"{time.monotonic() - self._started:6.0f} s  {text}", flush=True)

    def demo(self) -> None:
        """Run the demo and check its last output."""
        log = self.pictures / "demo.log"
        seconds = self.clone.run("demo", log)
        output = log.read_text(encoding="utf-8")
        missing = [title for title in CHAPTERS if title not in output]
        self._require(not missing, f"the output of make demo has no chapter {', '.join(missing)}: {log}")
        self._require(seconds < DEMO_S * self.slow, f"make demo took {seconds:.0f} s")
        self.show(f"make demo in {seconds:.0f} s, with {len(CHAPTERS)} chapters")

    def fleet(self, page: Page, url: str) -> None:
        """Open the Fleet page, and wait until all tables have a state and numbers."""
        opened = time.monotonic()
        page.open(f"{url}/plugin/lakehouse")
        page.see(GPS, POSITIONS, RATINGS, EVENTS)
        self._wait(lambda: page.run(_ROWS) >= 6 and page.run(_EMPTY) == 0, FILLED_S, "the Fleet page is not filled")
        rows = call(url, "tables")["rows"]
        unknown = [row["table"] for row in rows if row["health"] == "unknown"]
        self._require(not unknown, f"tables without a state: {', '.join(unknown)}")
        page.screenshot(self.pictures / "1-fleet.png")
        self.show(f"Fleet is filled {time.monotonic() - opened:.0f} s after it opened: {len(rows)} tables")

    def heal(self, page: Page, url: str) -> None:
        """See the alarm, request a clustering by a click, and wait for its end."""
        page.open(f"{url}/plugin/lakehouse/alarms")
        page.see(EVENTS, "small")
        page.screenshot(self.pictures / "2-alarm-open.png")
        before = self._files(url)
        page.open(f"{url}/plugin/lakehouse/table/{EVENTS}?tab=services")
        page.click("Request", role="[data-service=clustering] button")
        page.see("What would happen")
        page.screenshot(self.pictures / "3-request.png")
        page.click("Confirm")
        page.see("Recorded as action")
        self.show(f"clustering of {EVENTS} is requested by a click; it has {before} files")
        self._wait(lambda: self._files(url) <= CLUSTERED, HEALED_S, f"{EVENTS} is not clustered")
        page.open(f"{url}/plugin/lakehouse/table/{EVENTS}?tab=timeline")
        page.see("instants")
        page.screenshot(self.pictures / "4-healed.png")
        self.show(f"{EVENTS} is healed: {before} files became {self._files(url)}")

    def resolved(self, page: Page, url: str) -> None:
        """Wait until the alarm of the table is resolved, and see it on its page."""

        def is_resolved() -> bool:
            alarms = call(url, "alarms?resolved=true&limit=50")["alarms"]
            return any(alarm["table"] == EVENTS for alarm in alarms)

        self._wait(is_resolved, HEALED_S, f"the alarm of {EVENTS} is not resolved")
        page.open(f"{url}/plugin/lakehouse/alarms?resolved=true")
        page.see(EVENTS)
        page.screenshot(self.pictures / "5-alarm-resolved.png")
        self.show(f"the alarm of {EVENTS} is resolved")

    def _files(self, url: str) -> int:
        return int(call(url, f"tables/{EVENTS}/files?limit=1")["total"])

    def _wait(self, condition: Callable[[], bool], limit_s: float, problem: str) -> None:
        deadline = time.monotonic() + limit_s * self.slow
        while not condition():
            self._require(time.monotonic() < deadline, f"{problem} after {limit_s * self.slow:.0f} s")
            time.sleep(1)

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise SystemExit(f"{time.monotonic() - self._started:6.0f} s  FAILED: {problem}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
