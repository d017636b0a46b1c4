"""A deterministic simulation of the pool: one thread, a virtual clock, random crashes at every commit.

``python -m tests.simulation --seeds 1000`` runs many histories and prints one line; ``--seed N --trace`` replays one of them.

The product's own code runs on SQLite in memory. What is simulated is only *when* who does what: callers, mains (the real
Process, Leader, Watcher, Writer and Performer without their threads), hints on their way, deaths. Every COMMIT is a point at
which whoever commits may die, before or after it, or lose its connection. After each commit the rows are held against the
contract, and at the end of a history, when all has come to rest, everything that was accepted must have ended exactly once.

Everything random comes from one generator, and time moves only from one event to the next: a seed is a history.
"""
