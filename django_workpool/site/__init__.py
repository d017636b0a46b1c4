"""What the people who use a site see of its works: signed links to the state of one work, and a progress bar that follows it.

Include ``django_workpool.site.urls`` somewhere; ``{% load workpool %}`` has the template tags.
"""

from .links import status_url

__all__ = ["status_url"]
