"""`python -m lakehouse`, and the script that spark-submit runs.

`python -m` puts the working directory first on sys.path. A command that is run inside a folder of another party, such
as a table, would import its `pyarrow.py`. So that folder is taken out, unless this package itself comes from it. The
command `lakehouse` and `python -P -m lakehouse` never have it.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and sys.path:
    _here = os.path.realpath(os.getcwd())
    if os.path.realpath(sys.path[0] or ".") == _here and not os.path.realpath(__file__).startswith(_here + os.sep):
        del sys.path[0]

from lakehouse.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
