"""Take the eight pictures of docs/_static/pages from the demo: `make pictures`.

The demo runs in a home whose path readers may see, `/srv/rides` by default, so that no picture has a path of a test. A
page that shows an error or a path of a test ends the script.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from urllib.parse import quote

from demo.story import GPS, POSITIONS
from tests.adoption.demo_session import ROOT, call, clone, token
from tests.support.browser import Page, browser
from tests.support.waiting import until

#: The pages by the name of the picture: path, text that has to be there, and height.
PAGES: dict[str, tuple[str, str, int]] = {
    "fleet": ("", GPS, 620),
    "overview": (f"table/{GPS}", "File sizes", 900),
    "timeline": (f"table/{GPS}?tab=timeline", "instants", 760),
    "partitions": ("table/{orders}?tab=partitions", "partitions", 620),
    "services": (f"table/{POSITIONS}?tab=services", "compaction", 900),
    "queue": ("queue?section=done", "predicted", 460),
    "alarms": ("alarms?resolved=true", GPS, 460),
    "lineage": ("table/{orders}?tab=lineage", "ride_orders", 460),
}
_WIDTH = 1280
#: Reads of a table are processes, which start slowly on a loaded machine.
_READ_S = 120
_SETTLED = "!document.querySelector('[data-lakehouse] [data-loading]')"
_FORBIDDEN = re.compile(r"/tmp/|pytest|Traceback|is damaged|Internal Server Error")


def main(words: list[str]) -> int:
    """Run the demo, take the pictures and return the exit code."""
    parser = argparse.ArgumentParser(prog="make pictures", description="Take the pictures of the documentation.")
    parser.add_argument("--folder", type=Path, default=Path("/srv/rides"), help="where to clone the project")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "_static" / "pages", help="folder of the pictures")
    parser.add_argument("--page", action="append", choices=[*PAGES], help="take this picture only; may be repeated")
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    logs = ROOT / "build" / "pictures"
    logs.mkdir(parents=True, exist_ok=True)
    project = clone(given.folder)
    if not (project.home / "story.json").exists():
        print(f"make demo in {given.folder}", flush=True)
        project.run("demo", logs / "demo.log")
    with project.pages(logs / "ui.log") as url, browser(logs / "profile") as page:
        page.log_in(url, token(url))
        orders = next(row["table"] for row in call(url, "tables")["rows"] if row["table"].endswith("ride_orders"))
        for name in given.page or PAGES:
            path, text, height = PAGES[name]
            place = f"{url}/plugin/lakehouse/{path.format(orders=quote(orders))}"
            _take(page, place, text, given.out / f"{name}.png", height=height)
    return 0


def _take(page: Page, url: str, text: str, target: Path, *, height: int) -> None:
    page.send("Emulation.setDeviceMetricsOverride", width=_WIDTH, height=height, deviceScaleFactor=1, mobile=False)
    page.open(url)
    page.see(text)
    if not until(lambda: bool(page.run(_SETTLED)), _READ_S):
        raise SystemExit(f"{url} still reads after {_READ_S} s:\n{page.text()}")
    shown = page.text()
    found = _FORBIDDEN.search(shown)
    if found or page.errors:
        raise SystemExit(f"{url} shows {found[0] if found else page.errors!r}; it is no picture for readers:\n{shown}")
    page.screenshot(target, width=_WIDTH, height=height)
    print(target, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
