"""Tests that drive a real Chromium through the pages, served by a process of its own, while real processes work off the pools."""
