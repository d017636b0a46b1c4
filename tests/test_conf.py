"""The WORKPOOLS setting: what it may say, and how everything else is refused."""

import logging
from datetime import timedelta
from types import MappingProxyType

import pytest
from django.conf import settings as live_settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_workpool import conf
from django_workpool.conf import MAX_LIMIT, MAX_PERIOD, NAME_MAX, PoolSettings
from django_workpool.exceptions import InvalidWork, UnknownPool, WorkpoolSettingsError
from django_workpool.models import POOL_LENGTH
from django_workpool.types import RetryBehavior


def refused(workpools) -> str:
    with override_settings(WORKPOOLS=workpools), pytest.raises(WorkpoolSettingsError) as caught:
        conf.pools()
    assert isinstance(caught.value, ImproperlyConfigured)
    return str(caught.value)


def test_without_the_setting_there_is_a_default_pool():
    with override_settings():
        if hasattr(live_settings, "WORKPOOLS"):
            del live_settings.WORKPOOLS
        conf._pools.cache_clear()
        assert conf.pools() == {"default": PoolSettings(name="default")}
    conf._pools.cache_clear()


def test_defaults_keep_results_for_a_day_and_retry_nothing():
    options = PoolSettings(name="p")
    assert options.max_parallelism is None
    assert options.log_level is None
    assert options.retention == timedelta(days=1)
    assert options.retry is False
    assert options.hold == timedelta(minutes=10)
    assert options.functions == ()


def test_all_keys_are_read(settings):
    settings.WORKPOOLS = {
        "email": {
            "MAX_PARALLELISM": 0,
            "LOG_LEVEL": "WARN",
            "RETENTION": timedelta(0),
            "RETRY": {"max_attempts": 3},
            "HOLD": timedelta(seconds=5),
            "FUNCTIONS": ["billing.work", "étude"],
        },
        "日本": MappingProxyType({"RETRY": True, "RETENTION": None, "MAX_PARALLELISM": None, "LOG_LEVEL": None, "FUNCTIONS": ("lib",)}),
    }
    assert conf.pools() == {
        "email": PoolSettings(
            name="email",
            max_parallelism=0,
            log_level="WARN",
            retention=timedelta(0),
            retry=RetryBehavior(max_attempts=3),
            hold=timedelta(seconds=5),
            functions=("billing.work", "étude"),
        ),
        "日本": PoolSettings(name="日本", retry=True, retention=None, functions=("lib",)),
    }
    assert conf.function_prefixes() == ("billing.work", "étude", "lib")


def test_a_changed_setting_is_read_again(settings):
    settings.WORKPOOLS = {"a": {}}
    assert list(conf.pools()) == ["a"]
    first = conf.pools()
    settings.USE_TZ = True
    assert conf.pools() is first
    settings.WORKPOOLS = {"b": {}}
    assert list(conf.pools()) == ["b"]


@pytest.mark.parametrize("workpools", [None, {}, [], "default", 1, [("default", {})]])
def test_the_setting_is_a_dictionary_of_at_least_one_pool(workpools):
    assert refused(workpools).startswith("WORKPOOLS must be a dictionary of at least one pool")


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\0b", "\ud83d", "x" * (NAME_MAX + 1), None, 1, b"a", ("a",)])
def test_names_of_pools_are_short_text_without_control_characters(name):
    text = refused({name: {}})
    assert text.startswith("WORKPOOLS: the name of a pool is text")
    assert text.isascii()


def test_a_name_may_be_as_long_as_its_columns(settings):
    assert NAME_MAX == POOL_LENGTH
    settings.WORKPOOLS = {"é" * NAME_MAX: {}, "two words 🎉👩‍👩‍👧": {}}
    assert [len(name) for name in conf.pools()] == [NAME_MAX, 16]


@pytest.mark.parametrize("options", [None, [], 10, "MAX_PARALLELISM"])
def test_options_are_a_dictionary(options):
    assert refused({"p": options}).startswith("WORKPOOLS['p'] must be a dictionary")


@pytest.mark.parametrize("key", ["max_parallelism", "MAX_PARALELISM", "", 1, None])
def test_unknown_keys_are_refused_with_the_known_ones(key):
    text = refused({"default": {}, "p": {key: 1}})
    known = "MAX_PARALLELISM, LOG_LEVEL, RETENTION, RETRY, HOLD, FUNCTIONS, DATABASE, DIRECT, TIMEOUT"
    assert text == f"WORKPOOLS['p'] has an unknown key {key!r}; known are {known}."


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("MAX_PARALLELISM", [-1, True, False, 1.0, "10", MAX_LIMIT + 1, [], float("inf")]),
        ("LOG_LEVEL", ["info", "WARNING", "", 20, True, [], "REPORT "]),
        ("RETENTION", [timedelta(-1), 0, 86400, "1d", True, MAX_PERIOD + timedelta(1), timedelta.max]),
        ("RETRY", [None, 3, "yes", [], {"max_attempts": 0}, {"attempts": 3}, {1: 2}]),
        ("HOLD", [None, timedelta(-1), 600, False, timedelta.max]),
        ("DATABASE", ["", 1, True, ["default"], "nowhere"]),
        ("DIRECT", ["", 1, True, ["direct"]]),
        ("TIMEOUT", [timedelta(0), 5, True, "1s"]),
        ("FUNCTIONS", [None, "app.work", {"a"}, [""], ["app."], [".app"], ["a b"], ["a-b"], [1], [None]]),
    ],
)
def test_wrong_values_are_refused_with_their_place(key, values):
    for value in values:
        assert refused({"p": {key: value}}).startswith(f"WORKPOOLS['p']['{key}']: "), value


def test_a_value_whose_repr_fails_is_still_refused_clearly():
    class Hostile:
        def __repr__(self):
            raise RuntimeError

    assert "<Hostile>" in refused({"p": {"HOLD": Hostile()}})
    assert "not Hostile" in refused({"p": {"TIMEOUT": Hostile()}})
    assert len(refused({"p": {"HOLD": "x" * 10_000}})) < 300


def test_a_pool_is_found_by_its_name(settings):
    settings.WORKPOOLS = {"default": {}, "email": {"MAX_PARALLELISM": 3}}
    assert conf.pool("email").max_parallelism == 3
    for unknown in ("e-mail", "Email", "", None, 1, b"email", ["email"], {}, "x" * 1000, "a\0"):
        with pytest.raises(UnknownPool, match=r"WORKPOOLS names 'default', 'email'\.") as caught:
            conf.pool(unknown)
        assert isinstance(caught.value, (LookupError, ValueError))
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("limit", [0, 1, MAX_LIMIT])
def test_limits_in_range(limit):
    assert conf.check_limit(limit) == limit


@pytest.mark.parametrize("limit", [-1, MAX_LIMIT + 1, True, False, None, 1.0, "1", float("nan"), pytest.param(10**5000, id="5001 digits")])
def test_limits_out_of_range(limit):
    with pytest.raises(InvalidWork, match="max_parallelism must be a whole number from 0"):
        conf.check_limit(limit)


def test_log_levels():
    for level in ("DEBUG", "INFO", "REPORT", "WARN", "ERROR"):
        assert conf.check_log_level(level) == level
    for wrong in ("debug", "TRACE", "", None, 20, ["INFO"]):
        with pytest.raises(InvalidWork, match="log_level must be one of DEBUG, INFO, REPORT, WARN, ERROR"):
            conf.check_log_level(wrong)


def test_the_environment_names_the_default_level(monkeypatch):
    monkeypatch.delenv("WORKPOOL_LOG_LEVEL", raising=False)
    assert conf.default_log_level() == "REPORT"
    monkeypatch.setenv("WORKPOOL_LOG_LEVEL", "DEBUG")
    assert conf.default_log_level() == "DEBUG"
    monkeypatch.setenv("WORKPOOL_LOG_LEVEL", "")
    assert conf.default_log_level() == "REPORT"


@pytest.mark.parametrize("value", ["debug", "LOUD\n🎉", "x" * 5000])
def test_an_unknown_level_in_the_environment_is_warned_of_once_and_ignored(monkeypatch, caplog, value):
    monkeypatch.setattr(conf, "_warned", set())
    monkeypatch.setenv("WORKPOOL_LOG_LEVEL", value)
    with caplog.at_level(logging.WARNING, logger="django_workpool.conf"):
        assert [conf.default_log_level() for _ in range(3)] == ["REPORT"] * 3
    (record,) = [record for record in caplog.records if record.name == "django_workpool.conf"]
    assert record.getMessage().startswith("WORKPOOL_LOG_LEVEL is ")
    assert len(record.getMessage()) < 300


def test_a_reference_to_another_variable_is_followed(monkeypatch):
    monkeypatch.setenv("WORKPOOL_LOG_LEVEL", "$OTHER_LOG_LEVEL")
    monkeypatch.delenv("OTHER_LOG_LEVEL", raising=False)
    assert conf.default_log_level() == "REPORT"
    monkeypatch.setenv("OTHER_LOG_LEVEL", "ERROR")
    assert conf.default_log_level() == "ERROR"


class ToOther:
    def db_for_write(self, model, **hints):
        return "other" if model._meta.app_label == "workpool" else None


def test_the_database_is_the_one_that_the_router_names(settings):
    assert conf.database_alias() == "default"
    settings.DATABASE_ROUTERS = [ToOther()]
    assert conf.database_alias() == "other"


def test_the_direct_alias_is_one_that_exists_and_the_same_for_all_pools(settings, monkeypatch):
    settings.WORKPOOLS = {"default": {}, "p": {"DIRECT": None}}
    assert conf.direct_alias("default") is None
    settings.WORKPOOLS = {"default": {"DIRECT": "default"}, "p": {}}
    assert conf.direct_alias("default") is None
    settings.WORKPOOLS = {"default": {"DIRECT": "past"}, "p": {}}
    with pytest.raises(WorkpoolSettingsError, match="names 'past', which is not in DATABASES"):
        conf.direct_alias("default")
    monkeypatch.setitem(settings.DATABASES, "past", {})
    assert conf.direct_alias("default") == "past"
    settings.WORKPOOLS = {"default": {"DIRECT": "past"}, "p": {"DIRECT": "other"}}
    with pytest.raises(WorkpoolSettingsError, match="one DIRECT alias, not 'other', 'past'"):
        conf.direct_alias("default")
