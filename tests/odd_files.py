"""A folder of files that have broken programs, and what reading them must give."""

import hashlib
import os
from pathlib import Path

#: Names that have broken programs: not UTF-8, markup, line ends, quotes, format and percent signs, right-to-left, spaces.
ODD_NAMES = [
    b"caf\xe9.txt",
    "naïve ☃ 漢字 שלום.txt".encode(),
    b"<script>alert(1)<br>.html",
    b"two\nlines\r.txt",
    b"'quotes\" and \\back\\slashes",
    b"100% {braces} %s $HOME.txt",
    b" outer spaces ",
    b"-rf",
    b".dotfile",
    b"raw:caf%E9",
    b"\x1b[31mred",
]


def digest(content: bytes) -> str:
    """The SHA-256 of a content, as text."""
    return hashlib.sha256(content).hexdigest()


def make_folder(root: Path) -> Path:
    """Make a folder with odd names and with what is to be skipped."""
    (root / "sub" / "deeper").mkdir(parents=True)
    for number, name in enumerate(ODD_NAMES):
        (root / "sub" / os.fsdecode(name)).write_bytes(b"%d\n" % number * number)
    (root / "sub" / "deeper" / "large.bin").write_bytes(b"line\n" * 500_000)
    (root / "empty").touch()
    (root / ".hidden").mkdir()
    (root / ".hidden" / "secret").write_text("not to be read")
    (root / "link-to-file").symlink_to("empty")
    (root / "link-to-folder").symlink_to("sub")
    (root / "link-to-nothing").symlink_to("nothing")
    os.mkfifo(root / "pipe")
    return root


def expected(root: Path) -> dict[str, str]:
    """The digests of the fixture's files, found another way."""
    paths = [root / "empty", root / "link-to-file", *(path for path in (root / "sub").rglob("*") if path.is_file())]
    return {str(path.relative_to(root)): digest(path.read_bytes()) for path in paths}
