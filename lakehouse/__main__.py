"""Runs the CLI for `python -m lakehouse`; spark-submit runs this file as a script.

Python puts a folder first on sys.path. With `python -m` it is the working directory: a command that runs inside a
foreign folder, such as a table, would import a `pyarrow.py` from there. With a script it is the folder of this package:
`lakehouse/platform` would hide the standard module `platform`. Therefore that folder is removed, unless this package is
imported from it. The command `lakehouse` and `python -P -m lakehouse` never have it.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and sys.path:
    _first = os.path.realpath(sys.path[0] or ".")
    _package = os.path.dirname(os.path.realpath(__file__))
    if _first == _package or (_first == os.path.realpath(os.getcwd()) and not _package.startswith(_first + os.sep)):
        del sys.path[0]

from lakehouse.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
