"""What several of these tests begin with, or ask of a page."""

import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.hashers import MD5PasswordHasher
from django.contrib.auth.models import Permission, User
from selenium.common.exceptions import NoAlertPresentException

from django_workpool import Workpool

from ..works.tasks import note
from .chrome import Browser

LATER = timedelta(days=1)
#: Elements that only the hostile texts would make.
MADE = "img[src='x'], [onerror], [onfocus], script:not([src]):not([type='application/json'])"


def later(name: str, pool: str = "default") -> uuid.UUID:
    """Enqueue a work that waits."""
    return Workpool(pool).using(delay=LATER, name=name).enqueue(note, name)


def account(name: str, *codenames: str, superuser: bool = False) -> User:
    """Return a member of the staff with these permissions, made if there is none; the password is the name."""
    user, made = User.objects.get_or_create(username=name, defaults={"is_staff": True, "is_superuser": superuser})
    if made:
        # The project's own hasher takes a second where the machine is busy.
        user.password = MD5PasswordHasher().encode(name, "salt")
        user.save()
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="workpool", codename__in=codenames))
    return user


def assert_harmless(browser: Browser, address: str) -> None:
    """Assert that the page that is open has made nothing of the texts but text."""
    with pytest.raises(NoAlertPresentException):
        browser.driver.switch_to.alert.dismiss()
    assert browser.script("return window.__xss") is None, address
    assert [one.get_attribute("outerHTML") for one in browser.all(MADE)] == [], address
    assert browser.errors() == [], address
