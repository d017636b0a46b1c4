"""Drills: real processes on real servers, faults on purpose, and at the end the whole history against what is promised.

``python -m tests.faults --list`` names them, ``README.md`` says how long each takes and which of them run in CI.
"""
