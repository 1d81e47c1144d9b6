"""`python -m lakehouse`, and the script that spark-submit runs."""

from __future__ import annotations

import sys

from lakehouse.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
