"""A file with the secrets of a job, for a driver that starts on another host.

Variables of the environment become arguments of spark-submit and settings that Spark shows, so they cannot contain
secrets. The task writes them to a file that only its user can read, Spark copies the file to the containers of the
application, whose user alone can read it there, and the driver reads it before anything else. The task deletes its file
after the submission; YARN deletes the copies after the application.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from lakehouse.errors import UserError
from lakehouse.spec.private_files import private_file

#: The variable with the name of the file in the working directory of the driver.
CREDENTIALS = "LAKEHOUSE_CREDENTIALS"
_NAME = "lakehouse-credentials.json"


@contextmanager
def credentials_file(variables: Mapping[str, str]) -> Iterator[Path]:
    """Write variables to a new file with the mode 0600 in a new folder, and delete both after the block."""
    with TemporaryDirectory(prefix="lakehouse-") as folder:
        path = Path(folder) / _NAME
        private_file(path)
        path.write_text(json.dumps(dict(variables)), encoding="utf-8")
        yield path


def load_credentials(environ: MutableMapping[str, str]) -> None:
    """Add the variables of the file that LAKEHOUSE_CREDENTIALS names to an environment, and delete the file.

    Variables that the environment already has are kept. Raises UserError if the file is missing or unreadable.
    """
    name = environ.pop(CREDENTIALS, "")
    if not name:
        return
    path = Path(name)
    try:
        variables = json.loads(path.read_text(encoding="utf-8"))
        pairs = {str(key): str(value) for key, value in variables.items()}
    except (OSError, ValueError, AttributeError) as error:
        # The message of a decoding error may contain a part of the file.
        reason = error.strerror if isinstance(error, OSError) else "it is not a JSON object"
        raise UserError(f"the file {path} of {CREDENTIALS} cannot be read: {reason}", path=str(path)) from None
    for key, value in pairs.items():
        environ.setdefault(key, value)
    with suppress(OSError):
        path.unlink()
