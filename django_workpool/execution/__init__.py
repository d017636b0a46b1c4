"""Execution: the half of ``workpool_main`` that calls functions.

``threads`` and ``coroutines`` carry started works to a function, ``isolation`` makes the thread as fresh afterwards as it was
before, ``failures`` turns what was raised into text. Nothing here decides what runs, or what becomes of it.
"""
