"""`make reliability`."""

from __future__ import annotations

import sys

from tests.reliability.report import main

if __name__ == "__main__":
    sys.exit(main())
