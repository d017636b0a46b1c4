#!/usr/bin/env python
"""Django's command line for this project."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Run the command that the arguments name."""
    # The folder above, not this one: each module is to have one name, the one below "testproject".
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
