"""State machines of hypothesis, run against a real server: as fast as that is, and the same steps each time."""

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support.harness import ROUNDS, USUAL_ROUNDS


def run_machine(machine: type[RuleBasedStateMachine], examples: int, steps: int, **more: Any) -> None:
    """Let a machine take ``steps`` in each of ``examples``; ``more``: settings of hypothesis."""
    usual: dict[str, Any] = {
        "phases": [Phase.generate] if ROUNDS <= USUAL_ROUNDS else [*Phase],  # to make a failure small takes minutes
        "derandomize": True,
        "database": None,
        "deadline": None,
        "suppress_health_check": [*HealthCheck],
    }
    how = settings(max_examples=examples, stateful_step_count=steps, **usual | more)
    run_state_machine_as_test(machine, settings=how)
