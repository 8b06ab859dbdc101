"""One module per group of goals. Each has ``run(stage, plan) -> Outcome``."""
