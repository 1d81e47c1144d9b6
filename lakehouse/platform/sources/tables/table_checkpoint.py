"""The checkpoint of the source `table`: the newest commit of each source table that a commit has read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.errors import CorruptTableError, UnsupportedError

VERSION = 1
_COMPLETION = re.compile(r"\d{14}|\d{17}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheckpoint:
    """Completion times of commits, by view: each is the newest commit of the view's table that was read."""

    commits: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the checkpoint as one line of JSON."""
        return json.dumps({"version": VERSION, "commits": dict(sorted(self.commits.items()))})

    @classmethod
    def from_json(cls, text: str) -> TableCheckpoint:
        """Parse the text of a checkpoint.

        Raises UnsupportedError for a newer version, CorruptTableError for text that `to_json` did not write.
        """
        try:
            value = json.loads(text)
            version, commits = value["version"], dict(value["commits"])
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptTableError(f"the ingest checkpoint {text[:80]!r} is not one of source tables") from error
        if version != VERSION:
            raise UnsupportedError(
                f"the ingest checkpoint has version {version!r}, this package reads {VERSION}: update the package",
                version=version,
            )
        for view, completion in commits.items():
            if not isinstance(completion, str) or not _COMPLETION.fullmatch(completion):
                raise CorruptTableError(
                    f"the ingest checkpoint has {completion!r} for the view {view!r}, which is no time of a commit"
                )
        return cls(commits=commits)
