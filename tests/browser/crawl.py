"""Walks over the pages as a curious user does: by their links, one of each kind."""

import re
from collections.abc import Iterator

from .chrome import Browser

#: Pages in all. More would be a walk without an end.
PAGES_MAX = 80
_ROW = re.compile(r"/[^/]+(?=/(?:change|delete|history)/)")
LINKS = "return Array.from(document.querySelectorAll('a[href]'), link => link.href)"


def walk(browser: Browser, begin: str, below: str) -> Iterator[str]:
    """Open a page and those that its links lead to, and theirs: those below a path; yield each one's address while it is open.

    Pages that differ in their row, or in what a list is narrowed to, are of one kind: the first is opened.
    """
    ahead, seen = [begin], {begin}
    for address in ahead:
        assert len(ahead) <= PAGES_MAX, f"too many pages: {ahead}"
        browser.open(address)
        yield address
        for link in browser.script(LINKS):
            inside = link.removeprefix(browser.site).partition("#")[0]
            kind = _ROW.sub("/ROW", inside.partition("?")[0])
            # What was done with a row is told by Django's own page.
            if inside.startswith(below) and kind not in seen and not kind.endswith("/history/"):
                seen.add(kind)
                ahead.append(inside)
