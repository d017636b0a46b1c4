"""The app."""

from django.apps import AppConfig


class ImportsConfig(AppConfig):
    """What INSTALLED_APPS loads for ``testproject.imports``."""

    name = "testproject.imports"
    label = "imports"
    default_auto_field = "django.db.models.BigAutoField"
