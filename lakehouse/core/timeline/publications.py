"""Publication state of a table: one object that is changed by compare-and-swap, so that no change is lost.

    .hoodie/.lakehouse/published/state.json                                          partitions, versions, signals
    .hoodie/.lakehouse/published/<database>.<table>/<partition>/<instant>/manifest   the files of one version

A manifest that the object names pins its files, so clean retains them. Hudi neither reads nor lists this folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from lakehouse.core.env import Env
from lakehouse.core.format.publication import (
    PUBLISHED,
    SUCCESS,
    check_publications,
    decode_manifest,
    decode_publications,
    encode_manifest,
    encode_publications,
    is_copied_file,
    is_copy,
    is_manifest,
)
from lakehouse.core.storage.protocol import NotFoundError, Storage, is_temporary
from lakehouse.errors import CorruptTableError, RetryableError
from lakehouse.model.publication import Publication

DIRECTORY = PUBLISHED
STATE = f"{DIRECTORY}/state.json"
_TRIES = 20
_PAUSE_S = 0.05
_READERS = 16


def read_publications(env: Env) -> dict[str, Publication]:
    """Return the publications by `database.table`, with one request."""
    return _read(env)[0]


def change_publication(env: Env, target: str, change: Callable[[Publication], Publication]) -> Publication:
    """Replace a publication by the result of `change`, and return it.

    `change` is called again if another process changed the state in between. An unchanged result is not written. Raises
    RetryableError if other processes keep changing the state.
    """
    for number in range(_TRIES):
        publications, tag = _read(env)
        before = publications.get(target, Publication())
        after = change(before)
        if after == before:
            return after
        data = encode_publications({**publications, target: after}, env.ids.uuid())
        if env.storage.replace_if(STATE, data, tag) is not None:
            return after
        env.clock.sleep(_PAUSE_S * (1 + number % 5))
    raise RetryableError(f"{env.storage.root}: other processes keep changing {STATE}; run again", target=target)


def manifest_path(target: str, partition: str, instant: str) -> str:
    """Return the manifest path for one version of a partition. Its folder contains nothing else."""
    return (
        f"{DIRECTORY}/{target}/{partition}/{instant}/manifest"
        if partition
        else f"{DIRECTORY}/{target}/{instant}/manifest"
    )


def put_manifests(env: Env, files: dict[str, tuple[str, ...]]) -> None:
    """Write manifests; `files` maps manifest paths to paths of files in the table."""

    def put(entry: tuple[str, tuple[str, ...]]) -> None:
        env.storage.put(entry[0], encode_manifest(url_of(env.storage, path) for path in entry[1]))

    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(put, files.items()))


def read_manifest(env: Env, path: str) -> tuple[str, ...] | None:
    """Return the paths in the table that a manifest lists; None if it does not exist.

    Lines with other locations are skipped. They occur in a table that was copied without its published partitions.
    """
    try:
        lines = decode_manifest(env.storage.get(path))
    except NotFoundError:
        return None
    lead = url_of(env.storage, "") + "/"
    return tuple(line.removeprefix(lead) for line in lines if line.startswith(lead))


def pinned_paths(env: Env, manifests: Iterable[str]) -> frozenset[str]:
    """Return the paths of the files that some manifests pin."""
    with ThreadPoolExecutor(_READERS) as pool:
        pins = list(pool.map(lambda path: read_manifest(env, path), sorted(manifests)))
    return frozenset(path for paths in pins if paths is not None for path in paths)


def delete_manifest(env: Env, target: str, manifest: str) -> None:
    """Delete a manifest of the publication `target`; raise CorruptTableError for any other path."""
    if not is_manifest(target, manifest):
        raise CorruptTableError(f"{env.storage.root}: {manifest!r} is not a manifest of {target}", path=manifest)
    files, _ = env.storage.list_dir(manifest.rpartition("/")[0])
    ours = (manifest.rpartition("/")[2], SUCCESS)
    env.storage.delete_many([file.path for file in files if file.name in ours or is_temporary(file.name)])


def delete_copy(place: Storage, folder: str) -> tuple[str, ...]:
    """Delete the files of a copy, and return the other entries of its folder, which are not deleted.

    Raises CorruptTableError for a folder that cannot belong to a copy.
    """
    if not is_copy(folder):
        raise CorruptTableError(f"{place.root}: {folder!r} is not the folder of a copy", path=folder)
    files, directories = place.list_dir(folder)
    ours = [file.path for file in files if is_copied_file(file.name) or is_temporary(file.name)]
    place.delete_many(ours)
    left = {file.path for file in files} - set(ours)
    return tuple(sorted(left | {f"{folder}/{name}" for name in directories}))


def pin_id(manifest: str) -> str:
    """Return a short id of a manifest, in letters and digits."""
    return hashlib.blake2b(manifest.encode(), digest_size=8).hexdigest()


def url_of(storage: Storage, path: str) -> str:
    """Return the URL of a stored file for Hadoop's file systems; `""` stands for the root."""
    native = storage.native(path)
    return native if "://" in native else f"file://{native}"


def _read(env: Env) -> tuple[dict[str, Publication], str | None]:
    try:
        data, tag = env.storage.get_tagged(STATE)
    except NotFoundError:
        return {}, None
    publications = decode_publications(data, STATE)
    check_publications(publications, f"{env.storage.root}/{STATE}")
    return publications, tag
