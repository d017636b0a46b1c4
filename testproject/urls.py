"""The site: imports on the first page, and the admin."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("testproject.imports.urls")),
    path("admin/", admin.site.urls),
]
