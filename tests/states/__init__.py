"""The main loop driven by hand, in the test's own thread: rows in, one iteration, rows out."""
