"""The settings that suit functions which end at once: what the bench takes unless it is told otherwise.

More threads, and with them connections of functions that use the database, would not fit PostgreSQL's default of 100 connections.
"""

#: Works that run at once over all processes, those that wait in a process included.
LIMIT = 2_000
#: Options of each workpool_main, and how many functions it runs at once on threads: what ends at once gains nothing by more.
THREADS = 1
#: A second thread goes on while the first one waits for the server.
MUTATION_THREADS = 2
OPTIONS: tuple[str, ...] = ("--prefetch", "1023")
