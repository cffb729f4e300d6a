"""Folders of files under a key, on the local disk, where other machines' entries come too if a server shares them.

An entry is written beside its place and renamed into it, so that a reader sees all of it or nothing, whatever
happens to the writer. Its manifest holds a digest of every file, and of its notes; an entry that does not match is
removed and counts as absent. Entries are text, JSON, raw tensors and shared libraries: nothing is unpickled. Since
built code runs, the folder must belong to the user and be writable by nobody else."""

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from torch import Tensor

from gyrator.cache.remote import Remote
from gyrator.errors import CacheCorrupt
from gyrator.torch_compat import raw_bytes

FORMAT = 2
"""Of the manifest; entries of another format count as absent."""

MANIFEST = "manifest.json"

_STALE_SECONDS = 3600.0

Content = str | Path | Tensor
"""Of a file: a text; a file that is linked or copied; a tensor, whose elements are written row by row."""

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder with checked files, what its writer noted about it, and its key if it can be found again."""

    folder: Path
    notes: Mapping[str, Any]
    key: str | None = None

    def text(self, name: str) -> str:
        """The text of one of its files."""
        return (self.folder / name).read_text("utf-8")


class Store:
    """Entries of one kind in `root / kind`. Threads and processes may share a root."""

    def __init__(
        self, root: Path, kind: str, remote: Remote | None = None, spare: "Callable[[OSError], Store] | None" = None
    ) -> None:
        """Create the folders that are missing, with mode 0700; ``remote`` gives what they lack, and gets what is new;
        ``spare`` takes what they cannot take (they are read-only, or the disk is full).

        Raises: PermissionError if the folder belongs to someone else or others may write into it."""
        self._folder, self._remote, self._spare, self._shared = root / kind, remote, spare, f"gyrator:{FORMAT}:{kind}:"
        for folder in (root, self._folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
            if status.st_uid != os.getuid():
                raise PermissionError(f"{folder} belongs to another user")
            if status.st_mode & 0o022:
                raise PermissionError(f"others may write into {folder}")

    def find(self, key: str, warn: Callable[[str], object], *, again: bool = False) -> Entry | None:
        """The entry of a key, or None. One that is damaged, also when read ``again``, is removed, with a warning."""
        folder = self._place(key)
        if self._remote is not None and not folder.exists():
            with suppress(OSError), self._draft(folder) as draft:
                self._remote.fetch(self._shared + key, draft)
        try:
            manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
            if manifest["format"] != FORMAT:
                return None
            for name, expected in manifest["files"].items():
                if file_digest(folder / name) != expected:
                    raise ValueError(f"{name} does not match its digest")
            if _notes_digest(manifest["notes"]) != manifest["digest"]:
                raise ValueError("its notes do not match their digest")
            return Entry(folder, manifest["notes"], key)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if folder.exists() and not again:
                return self.find(key, warn, again=True)  # another process may have put it there just now
            if folder.exists():
                self.remove(key)
                warn(str(CacheCorrupt(str(folder), str(error))))
            return None

    def put(self, key: str, files: Mapping[str, Content], notes: Mapping[str, Json]) -> Entry:
        """Write an entry. If another writer was first, its entry stays; with other notes, nobody finds ours."""
        try:
            return self._put(key, files, notes)
        except OSError as problem:
            if self._spare is None:
                raise
            return self._spare(problem).put(key, files, notes)

    def _put(self, key: str, files: Mapping[str, Content], notes: Mapping[str, Json]) -> Entry:
        place = self._place(key)
        with self._draft(place) as draft:
            for name, content in files.items():
                _write(draft / name, content)
            digests = {name: file_digest(draft / name) for name in files}
            manifest = {"format": FORMAT, "files": digests, "notes": dict(notes), "digest": _notes_digest(notes)}
            (draft / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", "utf-8")
        if _about(place) != (FORMAT, _notes_digest(notes)):  # another writer was first, and may be loading it
            return self.put_anonymous(files, notes)
        if self._remote is not None:
            self._remote.send(self._shared + key, place)
        self._sweep()
        return Entry(place, notes, key)

    @contextmanager
    def _draft(self, place: Path) -> Iterator[Path]:
        """A folder to write to, which gets its place if it has a manifest. What was there before goes if it differs."""
        place.parent.mkdir(mode=0o700, exist_ok=True)
        before = _about(place)
        with self._temporary() as draft:
            yield Path(draft)
            if Path(draft, MANIFEST).exists():
                try:
                    os.rename(draft, place)
                except OSError:  # not empty
                    if _about(place) == before != _about(Path(draft)):
                        self.remove(place.name)
                        os.rename(draft, place)

    def put_anonymous(self, files: Mapping[str, Content], notes: Mapping[str, Json]) -> Entry:
        """Write an entry that nobody will look up."""
        return replace(self.put(secrets.token_hex(32), files, notes), key=None)

    def remove(self, key: str) -> None:
        """Forget an entry, if there is one that may be removed. Processes that run its code keep it."""
        with suppress(OSError), self._temporary() as grave:
            self._place(key).rename(grave)

    def newest(self, limit: int) -> Iterator[Mapping[str, Any]]:
        """The notes of the entries that were written last, but those of damaged ones."""
        for manifest in sorted(self._folder.glob(f"??/*/{MANIFEST}"), key=_changed, reverse=True)[:limit]:
            with suppress(OSError, ValueError, KeyError, TypeError):
                found = json.loads(manifest.read_text("utf-8"))
                if found["digest"] == _notes_digest(found["notes"]):
                    yield found["notes"]

    def _place(self, key: str) -> Path:
        return self._folder / key[:2] / key

    def _temporary(self) -> TemporaryDirectory[str]:
        return TemporaryDirectory(prefix="draft-", dir=self._folder, ignore_cleanup_errors=True)

    def _sweep(self) -> None:
        """Remove what writers that were killed left behind."""
        for draft in self._folder.glob("draft-*"):
            if _changed(draft) < time.time() - _STALE_SECONDS:
                shutil.rmtree(draft, ignore_errors=True)


def digest(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def files_digest(*paths: Path) -> str:
    """SHA-256 of the names and contents of files that stay as they are while the process lasts."""
    return digest("\n".join(f"{path.name} {file_digest(path)}" for path in paths))


def _notes_digest(notes: Mapping[str, Json]) -> str:
    return digest(json.dumps(notes, sort_keys=True))


def _about(folder: Path) -> object:
    """The format of an entry and the digest of its notes; None of what is no entry."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        return manifest["format"], manifest["digest"]
    return None


def _write(path: Path, content: Content) -> None:
    if isinstance(content, str):
        path.write_text(content, "utf-8")
    elif isinstance(content, Tensor):
        path.write_bytes(raw_bytes(content))
    else:
        try:
            os.link(content, path)
        except OSError:  # another file system, or one without links
            shutil.copyfile(content, path)


def _changed(path: Path) -> float:
    """The time of the last change; 0 if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
