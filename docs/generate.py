"""Write the pages and charts that are derived from code and data: `python docs/generate.py`, or `make reference`.

With --check nothing is written, and the exit code is 1 if a page differs from the code.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS.parent / "plugins")]

# The repository is on the path only now.
from docs.generators.architecture import architecture_files  # noqa: E402
from docs.generators.compatibility import compatibility_files  # noqa: E402
from docs.generators.pages import REFERENCE  # noqa: E402
from docs.generators.performance import performance_files  # noqa: E402


def main() -> int:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs from the code")
    only_check = parser.parse_args().check
    different = 0
    pages = {DOCS / "reference" / name: generated() for name, generated in REFERENCE.items()}
    for path, text in (pages | performance_files() | architecture_files() | compatibility_files()).items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        different += 1
        if not only_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        outcome = "differs from the code" if only_check else "written"
        sys.stdout.write(f"{outcome}: {path.relative_to(DOCS.parent).as_posix()}\n")
    return int(only_check and different > 0)


if __name__ == "__main__":
    sys.exit(main())
