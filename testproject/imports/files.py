"""Files and folders: finding them, reading one, and carrying any path as text."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypedDict
from urllib.parse import quote_from_bytes, unquote_to_bytes

from django.conf import settings

#: Bytes read at once.
CHUNK = 1024 * 1024
#: Begins a path that is not UTF-8. No other path has two slashes at this place.
RAW = "raw://"
#: What SQLite keeps beside a database file.
SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")


class Digest(TypedDict):
    """What reading one file gives."""

    path: str
    sha256: str
    size: int
    lines: int


class OwnDatabase(OSError):
    """The file is one of the project's own SQLite database."""


@dataclass
class Found:
    """What lies below a folder."""

    #: Relative paths of the regular files, in order, as Python's functions take them.
    files: list[str] = field(default_factory=list)
    #: Relative paths of the folders that could not be listed.
    unlisted: list[str] = field(default_factory=list)


def to_text(path: str) -> str:
    """Return ``path`` as text that JSON and every database can carry; ``from_text`` gives it back."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return RAW + quote_from_bytes(os.fsencode(path))
    return path


def from_text(text: str) -> str:
    """Return the path that ``to_text`` was given."""
    return os.fsdecode(unquote_to_bytes(text.removeprefix(RAW))) if text.startswith(RAW) else text


def find(folder: str) -> Found:
    """Return the regular files below ``folder``: without folders whose name begins with a dot, without the project's own database.

    Links to regular files count, links to folders do not.

    Raises:
        OSError: the folder itself cannot be listed.
    """
    found = Found()
    own = own_database()
    waiting = [""]
    while waiting:
        relative = waiting.pop()
        try:
            entries = sorted(os.scandir(os.path.join(folder, relative)), key=lambda entry: entry.name)
        except OSError:
            if not relative:
                raise
            found.unlisted.append(relative)
            continue
        folders = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)]
        waiting += [os.path.join(relative, entry.name) for entry in reversed(folders)]
        found.files += [os.path.join(relative, entry.name) for entry in entries if _is_file(entry, own)]
    return found


def _is_file(entry: "os.DirEntry[str]", own: set[tuple[int, int]]) -> bool:
    try:
        if not entry.is_file():
            return False
        told = entry.stat()
    except OSError:
        # It is there but cannot be looked at: its work will say why.
        return not entry.is_symlink()
    return (told.st_dev, told.st_ino) not in own


def read(folder: str, relative: str, tell: Callable[[int, int], object] = lambda done, total: None) -> Digest:
    """Read the file ``relative`` below ``folder`` and return its digest, its size in bytes and its line count (as ``wc -l`` has it).

    ``tell`` is told how many bytes have been read, and how many there are.

    Raises:
        OSError: it is not there, not a regular file, or cannot be read.
    """
    path = os.path.join(folder, relative)
    told = os.stat(path)
    # Closing such a file would drop the locks that this process holds on its database.
    if (told.st_dev, told.st_ino) in own_database():
        raise OwnDatabase(f"{to_text(relative)} belongs to the database of this project.")
    digest = hashlib.sha256()
    size = lines = 0
    for chunk in _chunks(path):
        digest.update(chunk)
        size += len(chunk)
        lines += chunk.count(b"\n")
        tell(size, max(size, told.st_size))
    return {"path": to_text(relative), "sha256": digest.hexdigest(), "size": size, "lines": lines}


def _chunks(path: str) -> Iterator[bytes]:
    with open(path, "rb", buffering=0, opener=_open) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{to_text(path)} is not a regular file.")
        while chunk := file.read(CHUNK):
            yield chunk


def _open(path: str, flags: int) -> int:
    # Opening what has become a pipe since would wait for ever.
    return os.open(path, flags | os.O_NONBLOCK)


def own_database() -> set[tuple[int, int]]:
    """Return (device, inode) of each file of the project's SQLite databases."""
    own = set()
    for database in settings.DATABASES.values():
        if database["ENGINE"] == "django.db.backends.sqlite3":
            for suffix in SQLITE_SUFFIXES:
                try:
                    told = os.stat(f"{database['NAME']}{suffix}")
                except OSError:
                    continue
                own.add((told.st_dev, told.st_ino))
    return own
