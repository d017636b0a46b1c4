"""What operators see and steer in a browser: pages of Django's admin. ``rows`` are the tables, ``periodic`` what people edit."""

from . import rows as rows
