"""Events: one ASCII line each, whatever they carry, and never an exception."""

import io
import logging
import os
import subprocess
import sys
import uuid

import pytest

from django_workpool import events
from django_workpool.events import LINE_MAX, VALUE_MAX, emit


class Keep(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


@pytest.fixture
def records(monkeypatch):
    handler = Keep()
    monkeypatch.setattr(events.logger, "handlers", [handler])
    monkeypatch.setattr(events.logger, "propagate", False)
    level = events.logger.level
    events.logger.setLevel(1)
    yield handler.records
    events.logger.setLevel(level)


def test_a_line_is_event_pool_and_the_fields_in_order(records):
    work_id = uuid.UUID(int=1)
    emit("started", pool="email", level="INFO", threshold="DEBUG", work=work_id, lag=0.25, attempts=2, late=False, error=None)
    assert [record.getMessage() for record in records] == [
        f"event=started pool=email work={work_id} lag=0.25 attempts=2 late=false error=null"
    ]
    assert records[0].workpool == {
        "event": "started",
        "pool": "email",
        "work": work_id,
        "lag": 0.25,
        "attempts": 2,
        "late": False,
        "error": None,
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("app.tasks.send", "app.tasks.send"),
        ("", '""'),
        ("two words", '"two words"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("a=b", '"a=b"'),
        ("a\nevent=forged\x00\x1b[31m", '"a\\nevent=forged\\u0000\\u001b[31m"'),
        ("é", '"\\u00e9"'),
        ("\ud83d", '"\\ud83d"'),
        ("\u202eright", '"\\u202eright"'),
    ],
)
def test_values_are_escaped_so_that_a_line_stays_one_line_of_ascii(records, value, shown):
    emit("completed", pool="p", level="INFO", threshold="INFO", name=value)
    assert records[0].getMessage() == f"event=completed pool=p name={shown}"


@pytest.mark.parametrize(
    ("level", "threshold", "written"),
    [
        ("DEBUG", "INFO", False),
        ("INFO", "REPORT", False),
        ("REPORT", "REPORT", True),
        ("WARN", "REPORT", True),
        ("REPORT", "WARN", False),
        ("ERROR", "ERROR", True),
        ("DEBUG", "DEBUG", True),
        ("INFO", "nonsense", False),
        ("REPORT", "", True),
    ],
)
def test_events_below_the_threshold_are_dropped(records, level, threshold, written):
    emit("e", pool="p", level=level, threshold=threshold)
    assert len(records) == written


def test_levels_are_those_of_logging(records):
    for level in events.LEVELS:
        emit("e", pool="p", level=level, threshold="DEBUG")
    assert [record.levelno for record in records] == [10, 20, 25, 30, 40]
    assert [record.levelname for record in records] == ["DEBUG", "INFO", "REPORT", "WARNING", "ERROR"]


def test_long_values_and_lines_are_cut(records):
    emit("e", pool="p", level="INFO", threshold="INFO", name="🎉" * 10_000)
    emit("e", pool="p", level="INFO", threshold="INFO", **{f"key{n}": "x" * VALUE_MAX for n in range(20)})
    first, second = (record.getMessage() for record in records)
    assert len(first) <= LINE_MAX
    assert first.isascii()
    assert len(second) == LINE_MAX


class Hostile:
    def __str__(self):
        raise RuntimeError("no text")


def test_a_value_without_a_text_is_named(records):
    emit("e", pool="p", level="INFO", threshold="INFO", bad=Hostile(), big=-(10**10))
    assert records[0].getMessage() == 'event=e pool=p bad="<Hostile: RuntimeError>" big=-10000000000'


def test_a_handler_or_a_value_that_raises_is_no_failure(capsys):
    class Broken(logging.Handler):
        def handle(self, record):
            raise OSError("disk full")

    handler = Broken()
    logger = logging.getLogger("django_workpool.events")
    logger.addHandler(handler)
    try:
        emit("e", pool="p", level="ERROR", threshold="INFO")
        emit("e", pool="p", level="ERROR", threshold="INFO", number=10**5000)
    finally:
        logger.removeHandler(handler)
    assert "disk full" in capsys.readouterr().err


def test_a_closed_stderr_is_no_failure(monkeypatch):
    class Broken(logging.Filter):
        def filter(self, record):
            raise OSError("filter")

    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    broken = Broken()
    logger = logging.getLogger("django_workpool.events")
    logger.addFilter(broken)
    try:
        emit("e", pool="p", level="ERROR", threshold="INFO")
    finally:
        logger.removeFilter(broken)


def test_a_plain_locale_and_a_strict_ascii_stream_get_every_line():
    code = (
        "import logging, sys\n"
        "from django_workpool.events import emit\n"
        "logging.basicConfig(stream=sys.stdout, level=1, format='%(levelname)s %(message)s')\n"
        "for name in ('\\U0001f389', '\\u65e5\\u672c', '\\u05d0\\u202e', 'x' * 10_000, '\\ud83d', 'a\\x00b'):\n"
        "    emit('completed', pool='\\u65e5', level='REPORT', threshold='INFO', name=name, error=name)\n"
    )
    env = {**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert all(line.startswith('REPORT event=completed pool="\\u65e5" name=') for line in lines)


def test_a_name_that_another_package_gave_to_the_number_is_left():
    code = (
        "import logging; logging.addLevelName(25, 'NOTICE')\n"
        "import importlib, django_workpool.events as e; importlib.reload(e); print(logging.getLevelName(25))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "NOTICE\n"
