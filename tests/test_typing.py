"""What type checkers say about the public names: they refuse wrong arguments at the call. mypy and pyright are held to the same marks.

Pyright is taken as basedpyright, whose wheels bring all that it needs: nothing is loaded when it runs.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.once, pytest.mark.anywhere]

ROOT = Path(__file__).parents[1]
EXAMPLES = Path(__file__).parent / "typing"
#: As strict as users may be. Without the plugin of the project's own configuration: users need not have it.
MYPY = "[mypy]\nstrict = true\nfollow_imports = silent\n"
PYRIGHT = {"include": [str(EXAMPLES)], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict", "pythonVersion": "3.11"}

#: The errors of a checker, as {file: {line: text}}.
Errors = dict[str, dict[int, str]]


def start(module: str, *arguments: str) -> "subprocess.Popen[str] | None":
    """Start a checker; None if it is not installed."""
    if find_spec(module) is None:
        return None
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def checkers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Errors]:
    """Return the errors of the examples by checker. One run of each for all tests, side by side: most of it is reading."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "mypy.ini").write_text(MYPY)
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    examples = map(str, sorted(EXAMPLES.glob("*.py")))
    options = ("-p", str(folder / "pyrightconfig.json"), "--outputjson", "--pythonpath", sys.executable)
    started = {
        "mypy": start("mypy", "--config-file", str(folder / "mypy.ini"), "--cache-dir", str(folder), *examples),
        "pyright": start("basedpyright", *options),
    }
    read = {"mypy": read_mypy, "pyright": read_pyright}
    return {name: read[name](output_of(process)) for name, process in started.items() if process is not None}


def output_of(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=110)
    assert process.returncode in (0, 1), output
    return output


def read_mypy(output: str) -> Errors:
    found: Errors = {}
    for match in re.finditer(r"^(.+?):(\d+): error: (.*)$", output, re.MULTILINE):
        found.setdefault(Path(match[1]).name, {})[int(match[2])] = match[3]
    return found


def read_pyright(output: str) -> Errors:
    found: Errors = {}
    told = json.loads(output)
    assert told["summary"]["filesAnalyzed"] == len(list(EXAMPLES.glob("*.py"))), "it has read the examples"
    for one in told["generalDiagnostics"]:
        if one["severity"] == "error":
            found.setdefault(Path(one["file"]).name, {})[one["range"]["start"]["line"] + 1] = one["message"]
    return found


@pytest.fixture(params=["mypy", "pyright"])
def errors(request: pytest.FixtureRequest, checkers: dict[str, Errors]) -> Errors:
    """Return the errors that one checker has found."""
    if request.param not in checkers:
        pytest.skip(f"{request.param} is not installed: the extra dev has it")
    return checkers[request.param]


def marked(lines: Sequence[str]) -> set[int]:
    return {number for number, line in enumerate(lines, start=1) if line.endswith("# E:")}


def test_right_calls_are_accepted(errors: Errors) -> None:
    assert errors.get("ok_enqueue.py", {}) == {}


def test_wrong_calls_are_refused_at_their_line(errors: Errors) -> None:
    lines = (EXAMPLES / "bad_enqueue.py").read_text().splitlines()
    wanted, found = marked(lines), errors["bad_enqueue.py"]
    assert len(wanted) > 50
    assert {number: lines[number - 1] for number in wanted - set(found)} == {}, "accepted"
    assert {number: text for number, text in found.items() if number not in wanted} == {}, "refused without a mark"
