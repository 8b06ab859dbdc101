"""Random steps against the model: I3 to I7, I10, I13 to I15."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from simulation.budget import MODEL_EXAMPLES
from simulation.model import Machine


@pytest.mark.timeout(3600)
def test_machine_behaves_as_the_model_says():
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=MODEL_EXAMPLES,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
