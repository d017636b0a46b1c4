"""Step 4 of a work's way: the main loop's one transaction an iteration, phase by phase.

``run_iteration`` is the table of contents. Nothing in this package runs user code, waits for a row, or acts before its commit.
"""
