"""The app's addresses."""

from django.urls import path

from . import views

app_name = "imports"
urlpatterns = [
    path("", views.imports, name="imports"),
    path("imports/<int:pk>/", views.detail, name="detail"),
]
