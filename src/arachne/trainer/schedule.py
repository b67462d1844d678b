"""The learning rate of a step."""

from arachne.trainer.settings.optimizer import OptimizerSettings


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """Rises linearly over the warm-up, then stays; step 0 already moves."""
    if step >= settings.warmup_steps:
        return settings.lr
    return settings.lr * (step + 1) / (settings.warmup_steps + 1)
