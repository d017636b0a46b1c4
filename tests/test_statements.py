"""What a statement leaves in its session is read from its text."""

import time
from typing import Any

import pytest

from django_workpool.execution.statements import Effect, effect_of


@pytest.mark.parametrize(
    ("statement", "effect"),
    [
        ("SELECT 1", Effect.NONE),
        ("  \n UPDATE t SET a = 1", Effect.NONE),
        ("UPDATE t SET a = 1; DELETE FROM t", Effect.NONE),
        ("INSERT INTO t VALUES (';', 'template', ' temperature')", Effect.NONE),
        ("SAVEPOINT s", Effect.NONE),
        ("RELEASE SAVEPOINT s", Effect.NONE),
        ("ROLLBACK TO SAVEPOINT s", Effect.NONE),
        ("rollback work to s", Effect.NONE),
        ("SET LOCAL work_mem = 1", Effect.NONE),
        ("SET  TRANSACTION ISOLATION LEVEL SERIALIZABLE", Effect.NONE),
        ("set constraints all deferred", Effect.NONE),
        ("COMMIT PREPARED 'x'", Effect.NONE),
        ("BEGIN IMMEDIATE", Effect.NONE),
        ("SELECT set_config('a.b', %s, true)", Effect.NONE),
        ("SELECT pg_advisory_xact_lock(1)", Effect.NONE),
        ("PRAGMA foreign_key_check", Effect.NONE),
        ("PRAGMA table_info('t')", Effect.NONE),
        ("PRAGMA journal_mode", Effect.NONE),
        ("CREATE TABLE attempts (a int)", Effect.NONE),
        ("CREATE TRIGGER t BEGIN UPDATE x SET a = 1; END; END", Effect.NONE),
        ("SELECT a FROM b WHERE c = ' set x'", Effect.NONE),
        ("SET x = 1", Effect.SESSION),
        ("set session characteristics as transaction read only", Effect.SESSION),
        ("(SELECT set_config('a', 'b', false))", Effect.SESSION),
        ("SELECT set_config('a', lower('B'), true)", Effect.SESSION),
        ("/* a */ -- b\n /* c\n */ Reset ALL", Effect.SESSION),
        ("SELECT 1;\n--x\nSET a = 1", Effect.SESSION),
        ("create or replace temp view v as select 1", Effect.SESSION),
        ("CREATE LOCAL TEMPORARY TABLE t (a int)", Effect.SESSION),
        ("SELECT 1 INTO\nTEMP t", Effect.SESSION),
        ("DISCARD ALL", Effect.SESSION),
        ("UNLISTEN *", Effect.SESSION),
        ("PRAGMA journal_mode = DELETE", Effect.SESSION),
        ("PRAGMA main.synchronous(0)", Effect.SESSION),
        ("detach other", Effect.SESSION),
        (b"SET x = 1", Effect.SESSION),
        (object(), Effect.SESSION),
        ("COMMIT", Effect.TRANSACTION),
        ("/* x */ end", Effect.TRANSACTION),
        ("ROLLBACK", Effect.TRANSACTION),
        ("abort work", Effect.TRANSACTION),
        ("PREPARE TRANSACTION 'x'", Effect.TRANSACTION),
        ("COMMIT; SET x = 1", Effect.TRANSACTION | Effect.SESSION),
    ],
)
def test_effect_of_statements(statement: Any, effect: Effect) -> None:
    """What a statement leaves in its session is read from its text."""
    assert effect_of(statement, None) is effect


@pytest.mark.parametrize("text", ["INSERT INTO t VALUES " + "(1, 'a;b');" * 200_000, ";" * 1_000_000, "(" * 1_000_000, "/*" * 500_000])
def test_long_statements_are_read_in_linear_time(text: str) -> None:
    """A statement of megabytes is looked through within a second or so."""
    began = time.process_time()
    effect_of(text, None)
    assert time.process_time() - began < 5
