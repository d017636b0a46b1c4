"""Projects that use the helpers, each with its own settings and test runner: Django's, also in parallel, and pytest's."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from django.db import connection

ROOT = Path(__file__).parents[1]
PATIENCE = 100

SETTINGS = """
    import environ
    from importlib.util import find_spec
    if find_spec("MySQLdb") is None and find_spec("pymysql") is not None:
        import pymysql
        pymysql.install_as_MySQLdb()
    SECRET_KEY = "x"
    USE_TZ = True
    INSTALLED_APPS = ["django_workpool", "shop"]
    DATABASES = {"default": environ.Env().db_url("PROJECT_DATABASE", default="sqlite://:memory:")}
    DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
    WORKPOOLS = {"default": {}, "email": {"MAX_PARALLELISM": 2}}
"""
MANAGE = """
    import os, sys
    from django.core.management import execute_from_command_line
    os.environ["DJANGO_SETTINGS_MODULE"] = "project_settings"
    execute_from_command_line(sys.argv)
"""
TASKS = """
    from django.db import transaction
    from django_workpool import action, mutation, on_complete
    from shop.models import Order

    @action
    def mail(pk):
        return f"mail {Order.objects.get(pk=pk).name}"

    @action
    async def amail(pk):
        return f"mail {(await Order.objects.aget(pk=pk)).name}"

    @mutation
    def pay(pk):
        Order.objects.filter(pk=pk).update(paid=True)

    @on_complete
    def told(done):
        Order.objects.filter(pk=done.context).update(name=done.result.value)
"""
MODELS = """
    from django.db import models

    class Order(models.Model):
        name = models.TextField()
        paid = models.BooleanField(default=False)
"""
DJANGO_TESTS = """
    from datetime import timedelta
    from django.test import TestCase, TransactionTestCase
    from django_workpool import Workpool, enqueue
    from django_workpool.testing import WorkpoolTestMixin
    from shop.models import Order
    from shop.tasks import amail, mail, pay, told

    class Tests:
        def test_it_runs(self):
            order = Order.objects.create(name="lamp")
            pool = Workpool("email").using(on_complete=told, on_complete_context=order.pk)
            with self.capture_work() as captured:
                pool.enqueue(mail, order.pk)
                enqueue(amail, order.pk)
                enqueue(pay, order.pk)
            self.assertEqual(len(captured), 3)
            self.assert_enqueued(mail, order.pk, pool="email")
            self.assertCountEqual([one.value for one in self.run_work(raises=True)], ["mail lamp", "mail lamp", None])
            order.refresh_from_db()
            self.assertEqual((order.name, order.paid), ("mail lamp", True))

        def test_time(self):
            order = Order.objects.create(name="lamp")
            Workpool().using(delay=timedelta(days=3)).enqueue(pay, order.pk)
            self.assertEqual(self.run_work(), [])
            self.travel(timedelta(days=3))
            self.assertEqual(len(self.run_work()), 1)

        def test_eager(self):
            self.eager()
            enqueue(pay, Order.objects.create(name="lamp").pk)
            self.assertEqual(Order.objects.filter(paid=True).count(), 1)

        def test_the_tables_are_empty_at_first(self):
            self.assertEqual((self.enqueued(), Order.objects.count()), ([], 0))

    class InTestCase(Tests, WorkpoolTestMixin, TestCase):
        @classmethod
        def setUpTestData(cls):
            cls.work_id = None

    class InTransactionTestCase(Tests, WorkpoolTestMixin, TransactionTestCase):
        pass

    class InAnotherTestCase(Tests, WorkpoolTestMixin, TestCase):
        pass
"""
PYTEST_TESTS = """
    import pytest
    from django.db import connection
    from django_workpool import enqueue
    from shop.models import Order
    from shop.tasks import mail, pay

    def test_the_fixture_asks_for_the_database(workpool):
        assert connection.in_atomic_block
        enqueue(pay, Order.objects.create(name="lamp").pk)
        assert len(workpool.run_work()) == 1
        assert Order.objects.get().paid

    def test_db(db, workpool):
        assert workpool.enqueued() == []
        workpool.eager(raises=True)
        enqueue(mail, Order.objects.create(name="lamp").pk)
        with pytest.raises(Order.DoesNotExist):
            enqueue(mail, -1)

    def test_transactional_db(transactional_db, workpool):
        assert not connection.in_atomic_block
        enqueue(pay, Order.objects.create(name="lamp").pk)
        workpool.travel(60)
        workpool.run_work()
        assert Order.objects.get().paid

    @pytest.mark.django_db(transaction=True)
    def test_a_mark(workpool):
        assert (connection.in_atomic_block, Order.objects.count(), workpool.enqueued()) == (False, 0, [])
        enqueue(pay, 1)

    class TestSomething:
        @pytest.mark.django_db
        def test_a_mark_on_a_method(self, workpool):
            assert (connection.in_atomic_block, workpool.enqueued()) == (True, [])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shop = tmp_path / "shop"
    shop.mkdir()
    files = {"manage.py": MANAGE, "project_settings.py": SETTINGS, "shop/__init__.py": "", "shop/tasks.py": TASKS, "shop/models.py": MODELS}
    for name, text in files.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


def run(folder: Path, *arguments: str, **variables: str) -> str:
    """Run Python in a folder, and return what it has said; it must end well."""
    dropped = ("DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS", "PYTHONPATH")
    env = {key: value for key, value in os.environ.items() if key not in dropped} | variables
    if connection.vendor != "sqlite":
        # A test database of its own beside this suite's.
        env["PROJECT_DATABASE"] = os.environ["DATABASE_URL"] + "_project"
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("how", [(), ("--parallel", "2")], ids=["one process", "parallel"])
def test_a_project_runs_its_tests_with_django(project: Path, how: tuple[str, ...]) -> None:
    (project / "shop" / "tests.py").write_text(textwrap.dedent(DJANGO_TESTS))
    said = run(project, "manage.py", "test", "--noinput", *how)
    assert "Ran 12 tests" in said
    assert "OK" in said


def test_a_project_runs_its_tests_with_pytest(project: Path) -> None:
    (project / "test_shop.py").write_text(textwrap.dedent(PYTEST_TESTS))
    said = run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ds=project_settings", "--create-db", "--strict-markers")
    assert "5 passed" in said


def test_the_example_of_the_manual_runs(project: Path) -> None:
    manual = (ROOT / "README.md").read_text()
    (tasks,) = re.findall(r"cat > mail/tasks.py <<'END'\n(.*?)\nEND\n", manual, re.DOTALL)
    (tests,) = re.findall(r"```python\n# mail/tests.py.*?\n(.*?)```", manual, re.DOTALL)
    (project / "mail").mkdir()
    for name, text in {"__init__": "", "tasks": tasks, "tests": tests}.items():
        (project / "mail" / f"{name}.py").write_text(text)
    with (project / "project_settings.py").open("a") as settings:
        settings.write('INSTALLED_APPS += ["mail"]\n')
    said = run(project, "manage.py", "test", "--noinput", "mail")
    assert "Ran 1 test" in said


def test_pytest_without_django_does_not_notice_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\n"
        "def test_nothing_is_loaded():\n"
        "    assert 'django_workpool.pytest_plugin' in sys.modules\n"
        "    assert [name for name in sys.modules if name.endswith(('.models', 'workpool.testing'))] == []\n"
        "    from django.conf import settings\n"
        "    assert not settings.configured\n"
    )
    said = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:django", "-W", "error")
    assert "1 passed" in said


def test_the_helpers_need_no_pytest(project: Path) -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'project_settings'\n"
        "import django; django.setup()\n"
        "import django_workpool.testing as t; assert set(t.__all__) <= set(dir(t))\n"
    )
    run(project, "-c", code)
