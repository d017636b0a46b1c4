"""What a type checker says about the public names: it refuses wrong arguments at the call."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[1]
EXAMPLES = Path(__file__).parent / "typing"


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """Return the errors of the examples, as {file: {line: text}}. One run for both: most of it is reading the stubs."""
    folder = tmp_path_factory.mktemp("mypy")
    config = folder / "mypy.ini"
    # Without the plugin of the project's own configuration: users need not have it.
    config.write_text("[mypy]\nstrict = true\nfollow_imports = silent\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(folder), *map(str, sorted(EXAMPLES.glob("*.py")))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, dict[int, str]] = {}
    for match in re.finditer(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        found.setdefault(Path(match[1]).name, {})[int(match[2])] = match[3]
    return found


def test_right_calls_are_accepted(errors):
    assert errors.get("ok_enqueue.py", {}) == {}


def test_wrong_calls_are_refused_at_their_line(errors):
    lines = (EXAMPLES / "bad_enqueue.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, start=1) if line.endswith("# E:")}
    assert len(marked) > 20
    assert set(errors["bad_enqueue.py"]) == marked
