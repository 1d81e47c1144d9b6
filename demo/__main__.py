"""Run the demo: `python -m demo`, in the folder of the sources."""

from __future__ import annotations

import sys

from demo.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
