"""Results, errors, labels and arguments that no database, terminal or log likes: through a process with a plain ASCII locale."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from django_workpool import RetryBehavior, Workpool
from django_workpool.models import Attempt

from .live import Live, failures, live_main, result, texts, times, transactional_db, value, wait_for_quiet
from .works.tasks import ended, note, raise_text, return_text

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")

PLAIN_LOCALE = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
#: Emoji with joiners, Chinese, right-to-left with marks, a combining accent, a line end.
ODD = "🎉👩‍👩‍👧 漢字 ‮שלום‬ مرحبا é\r\n%s {0} \\u0000"


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` for all tests of this module, whose output takes ASCII only, and which tells everything."""
    environment = {**PLAIN_LOCALE, "WORKPOOL_LOG_LEVEL": "DEBUG"}
    with live_main(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main"), env=environment) as running:
        yield running


def storable(text: str) -> bool:
    """Return whether any database takes the text."""
    return not re.search("[\x00\ud800-\udfff]", text)


@pytest.mark.parametrize("text", ["nul", "surrogate"])
def test_result_that_no_database_takes(live: Live, text: str) -> None:
    """The work succeeds, with the text cleaned; it is not run again."""
    work_id = Workpool().using(on_complete=ended, retry=True).enqueue(return_text, text)
    returned = value(work_id)
    assert storable(returned)
    assert returned.startswith("x") if text == "nul" else returned.endswith(".txt")
    assert result(work_id).attempts == 1
    assert texts("ended", work_id) == ["success:None"]


def test_result_that_is_odd_but_text(live: Live) -> None:
    """It comes back as it was."""
    assert value(Workpool().enqueue(return_text, "emoji")) == "🎉 漢字 שלום"


@pytest.mark.parametrize("text", ["nan", "set"])
def test_result_that_json_cannot_carry(live: Live, text: str) -> None:
    """The work fails at once, whatever its retry behaviour says: another attempt would return the same."""
    work_id = Workpool().using(on_complete=ended, retry=True).enqueue(return_text, text)
    assert (result(work_id).kind, result(work_id).attempts) == ("failed", 1)
    assert "the return value cannot be stored" in result(work_id).error
    assert texts("ended", work_id) == ["failed:None"]


@pytest.mark.parametrize("text", ["nul", "surrogate", "class", "path"])
def test_error_that_no_database_takes(live: Live, text: str) -> None:
    """It is stored, cleaned, at once: as many attempts as the retry behaviour says, one callback."""
    work_id = Workpool().using(on_complete=ended, retry=RetryBehavior(max_attempts=2)).enqueue(raise_text, text)
    assert (result(work_id).kind, result(work_id).attempts) == ("failed", 2)
    assert len(times("attempt", f"raise {text}")) == 2
    for attempt in failures(work_id):
        assert all(storable(told) for told in (attempt.text, attempt.traceback, attempt.class_path))
        assert attempt.text and "Traceback" in attempt.traceback
    assert texts("ended", work_id) == ["failed:None"]
    if text == "class":
        assert failures(work_id)[0].class_path.startswith("tests.works.tasks.Odd")
    if text == "path":
        assert result(work_id).error == "from an odd file" and "odd" in failures(work_id)[0].traceback


def test_odd_labels_arguments_and_errors_do_not_break_the_log(live: Live) -> None:
    """Emoji, Chinese, right-to-left, line ends, ten thousand characters: everything runs, and the log stays ASCII, a line an event."""
    label = Workpool().using(name=ODD).enqueue(note, ODD)
    long = Workpool().using(name="長" * 10_000).enqueue(note, ODD * 1000)
    failing = Workpool().using(name=ODD, on_complete=ended, on_complete_context=ODD).enqueue(raise_text, "emoji")
    assert (value(label), result(label).name) == (ODD, ODD)
    assert value(long) == ODD * 1000
    assert len(result(long).name) == 500 and result(long).name.startswith("長長") and result(long).name.endswith("…")
    assert (result(failing).kind, result(failing).error) == ("failed", "🎉 漢字 שלום")
    assert Attempt.objects.get(work_id=failing).text == "🎉 漢字 שלום"
    assert texts("ended", failing) == [f"failed:{ODD}"]
    wait_for_quiet()
    output = live.main.log.read_bytes()
    assert output.isascii()
    text = output.decode()
    assert "UnicodeEncodeError" not in text and "--- Logging error ---" not in text
    told = [line for line in text.splitlines() if str(label) in line]
    assert len(told) == 2, "started, completed"
    assert all("\\ud83c\\udf89" in line and "event=" in line for line in told)
    assert all(len(line) < 8100 for line in text.splitlines())
