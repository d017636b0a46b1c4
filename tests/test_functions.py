"""What may be registered, and what may be enqueued."""

import functools
import sys
from unittest import mock

import pytest

from django_workpool import functions
from django_workpool.exceptions import InvalidWork, UnregisteredFunction
from django_workpool.functions import (
    CALLBACK_KINDS,
    WORK_KINDS,
    action,
    known,
    mutation,
    on_complete,
    query,
    registered,
    resolve,
)
from django_workpool.models import PATH_LENGTH
from django_workpool.plain import PATH_MAX
from django_workpool.types import FnType, RetryBehavior

pytestmark = pytest.mark.anywhere


@pytest.fixture(autouse=True)
def registry(monkeypatch, settings):
    """Give each test a registry of its own, and functions of this module that are allowed."""
    monkeypatch.setattr(functions, "_registry", dict(functions._registry))
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests", "allowed"]}}


@action
def plain(x: int) -> int:
    return x + 1


@action(retry=True)
async def waiting() -> None: ...


@mutation(retry=RetryBehavior(max_attempts=3))
def change() -> None: ...


@query
def read() -> None: ...


@on_complete
def done(args) -> None: ...


@on_complete()
def done_called(args, more=None) -> None: ...


def bare() -> None: ...


@functools.wraps(plain)
def copied(*args):
    return plain(*args)


@functools.wraps(bare)
def outermost(*args):
    return bare()


def generator():
    yield 1


async def async_generator():
    yield 1


class Holder:
    def method(self): ...

    @staticmethod
    def static(): ...

    @classmethod
    def of_class(cls): ...

    def __call__(self): ...


HERE = __name__


@pytest.fixture(autouse=True)
def own_functions(registry):
    for func, decorator in ((plain, action), (waiting, action(retry=True)), (change, mutation), (read, query), (done, on_complete)):
        decorator(func)


def test_a_decorated_function_stays_what_it_is():
    assert plain(1) == 2
    assert type(plain) is type(bare)
    assert plain.__name__ == "plain"


@pytest.mark.parametrize(
    ("func", "fn_type", "is_async", "retry"),
    [
        (plain, FnType.ACTION, False, None),
        (waiting, FnType.ACTION, True, True),
        (change, FnType.MUTATION, False, None),
        (read, FnType.QUERY, False, None),
    ],
)
def test_a_function_and_its_path_lead_to_the_same_entry(func, fn_type, is_async, retry):
    entry = registered(func, WORK_KINDS)
    assert entry.func is func
    assert entry.path == f"{HERE}.{func.__name__}"
    assert (entry.fn_type, entry.is_async, entry.retry) == (fn_type, is_async, retry)
    assert registered(entry.path, WORK_KINDS) is entry
    assert resolve(entry.path, WORK_KINDS) is entry


def test_a_callback_is_an_entry_of_its_own_kind():
    assert registered(done, CALLBACK_KINDS).fn_type is FnType.CALLBACK
    assert resolve(f"{HERE}.done", CALLBACK_KINDS).func is done


def test_retry_is_kept_as_it_was_given():
    behavior = RetryBehavior(max_attempts=3)
    for given in (True, False, behavior, None):
        mutation(retry=given)(change)
        assert registered(change, WORK_KINDS).retry is given


@pytest.mark.parametrize("retry", [3, "yes", {}, RetryBehavior])
def test_retry_of_another_type_is_refused(retry):
    with pytest.raises(InvalidWork, match="retry must be True, False or a RetryBehavior"):
        action(retry=retry)


def test_a_path_is_as_long_as_its_columns():
    assert PATH_MAX == PATH_LENGTH
    name = "f" * PATH_MAX
    with pytest.raises(UnregisteredFunction, match="at most 500 characters"):
        action(renamed(name))
    with pytest.raises(UnregisteredFunction, match="at most 500 characters"):
        resolve(f"{HERE}.{name}", WORK_KINDS)


def renamed(name, module=HERE):
    namespace = {"__name__": module}
    exec("def f(): ...", namespace)
    namespace["f"].__name__ = namespace["f"].__qualname__ = name
    return namespace["f"]


# What cannot be registered ------------------------------------------------------------------------------------------------

nameless = lambda: None  # noqa: E731


def nested_function():
    def inner(): ...

    return inner


REFUSED = {
    "a lambda": (lambda: None, "is a lambda: write it as a def"),
    "a lambda with a name": (nameless, "is a lambda"),
    "a nested function": (nested_function(), "nested in another function: move it to the top level"),
    "a function of a class": (Holder.method, "is in a class: move it to the top level"),
    "a static method": (Holder.static, "is in a class"),
    "a raw static method": (Holder.__dict__["static"], "staticmethod"),
    "a raw class method": (Holder.__dict__["of_class"], "classmethod"),
    "a bound method": (Holder().method, "A method cannot be enqueued"),
    "a class method": (Holder.of_class, "A method cannot be enqueued"),
    "a class": (Holder, "The class Holder cannot be enqueued"),
    "a callable object": (Holder(), "Holder cannot be enqueued: it is not a function"),
    "a partial": (functools.partial(plain, 1), "pass the arguments to enqueue"),
    "a cached function": (functools.cache(bare), "is not a function"),
    "a built-in": (len, "built-in function"),
    "a method of a built-in": ([].append, "built-in function"),
    "a generator function": (generator, "is a generator: nothing would consume"),
    "an async generator function": (async_generator, "is a generator"),
    "a function of the main module": (renamed("f", "__main__"), "in no module that a worker can import"),
    "a function without a module": (renamed("f", None), "in no module that a worker can import"),
    "a mock": (mock.Mock(), "is not a function"),
    "a mock of a function": (mock.create_autospec(Holder()), "is not a function"),
    "a recorded call": (mock.call, "is not a function"),
    "a number": (3, "is not a function"),
}


@pytest.mark.parametrize("decorator", [action, mutation, query, on_complete, action(retry=True)])
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_found_by_its_path_is_refused_at_decoration(case, decorator):
    func, says = REFUSED[case]
    before = dict(functions._registry)
    with pytest.raises(UnregisteredFunction) as caught:
        decorator(func)
    assert says in str(caught.value)
    assert functions._registry == before


@pytest.mark.parametrize("case", REFUSED)
def test_the_same_is_refused_at_enqueue(case):
    func, says = REFUSED[case]
    with pytest.raises(UnregisteredFunction) as caught:
        registered(func, WORK_KINDS)
    assert says in str(caught.value)
    assert "@action or @mutation or @query" in str(caught.value) or case not in ("a partial", "a number", "a class")


@pytest.mark.parametrize("decorator", [mutation, query, on_complete])
def test_only_actions_may_be_async(decorator):
    with pytest.raises(UnregisteredFunction, match="is async: .* runs inside a database transaction of a thread") as caught:
        decorator(waiting)
    assert "make it an action" in str(caught.value)


def test_a_callback_must_take_one_argument():
    for func in (bare, renamed("none")):
        with pytest.raises(UnregisteredFunction, match="cannot be called with one argument"):
            on_complete(func)


def test_a_decorator_with_something_else_than_a_function_is_refused():
    with pytest.raises(UnregisteredFunction):
        action("app.tasks.send")


# What cannot be enqueued --------------------------------------------------------------------------------------------------


def test_an_undecorated_function_is_refused_with_what_to_do():
    with pytest.raises(UnregisteredFunction, match=rf"^{HERE}\.bare is not registered: decorate it with @action or @mutation or @query\.$"):
        registered(bare, WORK_KINDS)
    with pytest.raises(UnregisteredFunction, match=r"decorate it with @on_complete\.$"):
        registered(bare, CALLBACK_KINDS)


def test_a_wrapper_that_copies_the_name_of_a_registered_function_is_refused():
    with pytest.raises(UnregisteredFunction, match="is another function of that name: put @action outermost"):
        registered(copied, WORK_KINDS)


def test_a_function_with_other_decorators_below_is_found():
    module = sys.modules[HERE]
    for func in (functools.wraps(bare)(lambda: "wrapped"),):
        with mock.patch.object(module, "bare", action(func)):
            assert registered(func, WORK_KINDS) is resolve(f"{HERE}.bare", WORK_KINDS)
            assert registered(func, WORK_KINDS).func() == "wrapped"


def test_a_wrapper_whose_copied_name_leads_elsewhere_is_refused():
    """``outermost`` is registered as ``bare``, where a worker would find another function."""
    action(outermost)
    for given in (outermost, bare, f"{HERE}.bare"):
        with pytest.raises(UnregisteredFunction, match="outermost"):
            registered(given, WORK_KINDS)


def test_each_kind_is_only_taken_where_it_is_wanted():
    for given in (done, f"{HERE}.done"):
        with pytest.raises(UnregisteredFunction, match=r"is an on_complete function; an action or a mutation or a query is needed here"):
            registered(given, WORK_KINDS)
    for given in (plain, f"{HERE}.plain"):
        with pytest.raises(UnregisteredFunction, match="is an action; an on_complete function is needed here"):
            registered(given, CALLBACK_KINDS)


def test_a_function_outside_the_installed_apps_is_refused_however_it_is_named(settings):
    settings.WORKPOOLS = {"default": {}}
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if not app.startswith("tests")]
    for given in (plain, f"{HERE}.plain"):
        with pytest.raises(
            UnregisteredFunction, match="is outside the installed apps: add its app to INSTALLED_APPS, or its module to FUNCTIONS"
        ):
            registered(given, WORK_KINDS)
    assert f"{HERE}.plain" not in known()


def test_an_object_that_took_the_place_of_the_function_is_not_called(monkeypatch):
    for other in (mock.Mock(), bare, None):
        monkeypatch.setattr(sys.modules[HERE], "plain", other)
        for given in (plain, f"{HERE}.plain"):
            if type(given) is type(bare) or isinstance(given, str):
                with pytest.raises(UnregisteredFunction):
                    registered(given, WORK_KINDS)
        assert f"{HERE}.plain" not in known()
