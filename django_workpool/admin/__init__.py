"""What operators see and steer in a browser: pages of Django's admin, by what people look at.

``works``, ``finished``, ``pools``, ``workers`` and ``queues`` are the tables' pages, ``periodic`` what people edit. ``base`` is what all
of them share, ``lists`` and ``filters`` how long lists stay quick, ``history`` and ``shown`` what a page of details tells, ``acts`` what
may be done, ``databases`` which database is shown.
"""

from . import finished as finished
from . import periodic as periodic
from . import pools as pools
from . import queues as queues
from . import workers as workers
from . import works as works
