"""The site: take a folder in, and show how its files fare."""

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from .forms import FolderForm
from .intake import POOL, take_in
from .models import Import
from .progress import next_files, progress, retried

PAGE_SIZE = 100
#: Imports on the first page.
RECENT = 50


@require_http_methods(["GET", "HEAD", "POST"])
def imports(request: HttpRequest) -> HttpResponse:
    """Show the form and the imports so far; POST ``folder``: take it in.

    Whoever prefers JSON is answered 201 with the id and the number of files, or 400 with the errors of the form.
    """
    as_json = request.get_preferred_type(["text/html", "application/json"]) == "application/json"
    form = FolderForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = take_in(form.cleaned_data["folder"])
        except OSError as error:
            form.add_error("folder", f"The folder cannot be listed: {error.strerror}.")
        else:
            return JsonResponse({"id": made.pk, "total": made.total}, status=201) if as_json else redirect("imports:detail", made.pk)
    status = 400 if request.method == "POST" else 200
    if as_json:
        errors = {field: [str(error) for error in told] for field, told in form.errors.items()}
        return JsonResponse({"errors": errors}, status=status)
    return render(request, "imports/imports.html", {"form": form, "imports": Import.objects.all()[:RECENT]}, status=status)


@require_GET
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """Show how far one import is, and its files, a page at a time (``?page=``, ``?failed=1``)."""
    made = get_object_or_404(Import, pk=pk)
    rows = made.files.all()
    only_failed = "failed" in request.GET
    page = Paginator(rows.filter(ok=False) if only_failed else rows, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {"import": made, "progress": progress(made), "retried": retried(made), "page": page, "only_failed": only_failed}
    context |= {"next_files": next_files(made), "pool": POOL}
    return render(request, "imports/detail.html", context)
