"""The test suite. ``python -m tests`` runs it on SQLite and on PostgreSQL; plain ``pytest`` on one of them."""
