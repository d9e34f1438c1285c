"""Step sizes over the course of training, as pure functions of how much of it is done."""

import math

from calibrant.training.config.settings import ScheduleSettings


def step_size_factor(settings: ScheduleSettings, done: float, *, epochs: int) -> float:
    """Return what the highest step size is multiplied by.

    Args:
        settings: The schedule.
        done: Share of all steps that have been made, from 0 to 1.
        epochs: Passes in all, in which milestones are counted.

    Example:
        >>> round(step_size_factor(ScheduleSettings("cosine", warmup=0.1), 0.55, epochs=10), 6)
        0.5
        >>> step_size_factor(ScheduleSettings("multistep", milestones=(5, 8)), 0.5, epochs=10)
        0.1
    """
    if done < settings.warmup:
        return done / settings.warmup
    if settings.name == "constant":
        return 1.0
    if settings.name == "multistep":
        # Rounding must not put off a milestone by a step.
        passed = sum(milestone <= done * epochs + 1e-9 for milestone in settings.milestones)
        return float(settings.factor**passed)
    share = (done - settings.warmup) / (1 - settings.warmup)
    left = 1 - share if settings.name == "linear" else (1 + math.cos(math.pi * share)) / 2
    return settings.final + (1 - settings.final) * left
