"""Random sequences of the acts, over crashes: whatever is reached is in the contract's table, and every work ends exactly once.

WORKPOOL_TEST_EXAMPLES=1000 looks further, from a new seed each time.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .states.machine import PoolMachine

EXAMPLES = int(os.environ.get("WORKPOOL_TEST_EXAMPLES", "0"))
STEPS = 30


@pytest.mark.timeout(600 + EXAMPLES)
@pytest.mark.django_db(transaction=True)
def test_whatever_happens_every_work_ends_exactly_once_and_is_told() -> None:
    profile = settings(
        max_examples=EXAMPLES or 12,
        stateful_step_count=STEPS,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        # Without the explaining phase: it costs minutes.
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(PoolMachine, settings=profile)
