"""Random steps against the model: I3 to I7, I10, I13 to I15."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from simulation.budget import MODEL_EXAMPLES, MODEL_LONG_EXAMPLES_MIN, MODEL_STEPS_MIN, PROGRESS_WORLDS
from simulation.model import Machine

STEPS = 50


@pytest.mark.timeout(3600)
def test_machine_behaves_as_the_model_says():
    lengths: list[int] = []

    class Counted(Machine):
        def teardown(self) -> None:
            lengths.append(self.steps)
            super().teardown()
            if len(lengths) % PROGRESS_WORLDS == 0:
                print(f"\n{len(lengths)} of {MODEL_EXAMPLES} examples, {sum(lengths)} steps", end="", flush=True)

    run_state_machine_as_test(
        Counted,
        settings=settings(
            max_examples=MODEL_EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert sum(lengths) >= MODEL_STEPS_MIN
    assert sum(length >= STEPS for length in lengths) >= MODEL_LONG_EXAMPLES_MIN
