"""Write the reference pages that are derived from the code: `python docs/generate.py`, or `make reference`.

With --check nothing is written, and the exit code is 1 if a page differs from the code.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS.parent / "plugins")]

from docs.generators.pages import REFERENCE  # noqa: E402 -- the repository is on the path only now


def main() -> int:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs from the code")
    only_check = parser.parse_args().check
    different = 0
    for name, generated in REFERENCE.items():
        path, text = DOCS / "reference" / name, generated()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        different += 1
        if not only_check:
            path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{'differs from the code' if only_check else 'written'}: docs/reference/{name}\n")
    return int(only_check and different > 0)


if __name__ == "__main__":
    sys.exit(main())
