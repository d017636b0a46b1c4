"""The site: imports on the first page, the state of their works, and the admin."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("testproject.imports.urls")),
    path("work/", include("django_workpool.site.urls")),
    path("admin/", admin.site.urls),
]
