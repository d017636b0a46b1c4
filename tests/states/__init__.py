"""The main loop driven by hand, in the test's own thread: rows in, one iteration, rows out."""

import pytest

# Not a test module itself, but full of asserts that should tell what they have found.
pytest.register_assert_rewrite(f"{__name__}.machine", f"{__name__}.driver")
