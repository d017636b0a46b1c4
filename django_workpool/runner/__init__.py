"""Step 3 of a work's way: the ``workpool_main`` process.

It leads or stands by, iterates, acts on what an iteration returns, runs functions, and shuts down.
"""
