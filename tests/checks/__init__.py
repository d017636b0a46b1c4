"""Long checks beside the suite: ``python -m tests.checks.NAME --database sqlite|postgresql``.

Each makes a database of its own, prints one line with its verdict, and ends with 1 if something is not as promised.
PostgreSQL is the server that DATABASE_URL names, else one of the check's own.
"""
