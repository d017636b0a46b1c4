"""The addresses, for a project to include: ``path("work/", include("django_workpool.site.urls"))``."""

from django.urls import path

from . import views

app_name = "workpool"
urlpatterns = [
    path("<str:text>/", views.status, name="status"),
    path("<str:text>/events/", views.events, name="events"),
]
