"""The learning rate of a step: a function of its number, so that a resumed run goes on exactly."""

from math import cos, pi

from arachne.trainer.settings.optimizer import OptimizerSettings


def learning_rate(settings: OptimizerSettings, step: int, num_steps: int) -> float:
    """Rises linearly over the warm-up, then follows `settings.schedule`; step 0 already moves.

    Of the N steps of the run, W warm up. What then counts is the share x of the decay that is over,
    x = (step − W) / (N − W), or, where only the last D steps decay, x = (step − (N − D)) / D. From
    the full rate towards the share m of it:

        cosine       m + (1 − m)·(1 + cos πx) / 2
        linear, wsd  1 − (1 − m)·x

    The first step after the warm-up has the full rate; the last is one step away from the share m.
    Sources: Loshchilov and Hutter (arXiv 1608.03983), Hu et al. (arXiv 2404.06395) for wsd.
    """
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / (settings.warmup_steps + 1)
    return settings.lr * _share(settings, step, num_steps)


def _share(settings: OptimizerSettings, step: int, num_steps: int) -> float:
    if settings.schedule == "constant":
        return 1.0
    decay_steps = settings.decay_steps or num_steps - settings.warmup_steps
    over = min(1.0, max(0.0, 1.0 - (num_steps - step) / decay_steps))
    lowest = settings.min_lr_share
    if settings.schedule == "cosine":
        return lowest + (1.0 - lowest) * (1.0 + cos(pi * over)) / 2.0
    return 1.0 - (1.0 - lowest) * over
