"""The one form: which folder."""

import os

from django import forms

from . import files


class FolderForm(forms.Form):
    """Asks for a folder of this machine; ``cleaned_data["folder"]`` is its absolute path, as Python's functions take it."""

    # Not stripped: a space may begin or end a name.
    folder = forms.CharField(strip=False, max_length=4096, label="Folder on this machine")

    def clean_folder(self) -> str:
        """Check that it is a folder that can be listed."""
        told = self.cleaned_data["folder"]
        folder = os.path.abspath(os.path.expanduser(files.from_text(told)))
        if not os.path.lexists(folder):
            raise forms.ValidationError("There is no folder %(folder)s.", code="missing", params={"folder": told})
        if not os.path.isdir(folder):
            raise forms.ValidationError("%(folder)s is not a folder.", code="not_folder", params={"folder": told})
        try:
            os.scandir(folder).close()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise forms.ValidationError(
                "%(folder)s cannot be listed: %(reason)s.", code="unreadable", params={"folder": told, "reason": reason}
            ) from error
        return folder
