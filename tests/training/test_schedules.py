"""Step sizes: compared with torch's own schedulers, step by step."""

import pytest
import torch

from calibrant.training.config import ScheduleSettings
from calibrant.training.schedules import step_size_factor


def told_by_torch(make, n):
    """The factor before each of ``n`` steps of a torch scheduler, and after the last."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    factors = []
    for _ in range(n + 1):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return factors


def told_by_us(settings, n, *, epochs=10):
    return [step_size_factor(settings, step / n, epochs=epochs) for step in range(n + 1)]


@pytest.mark.parametrize("final", [0.0, 0.05])
def test_cosine_is_that_of_torch_at_every_step(final):
    def make(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=73, eta_min=final)

    ours = told_by_us(ScheduleSettings("cosine", final=final), 73)
    assert ours == pytest.approx(told_by_torch(make, 73), abs=1e-12)


@pytest.mark.parametrize("final", [0.0, 0.25])
def test_linear_is_that_of_torch_at_every_step(final):
    def make(optimizer):
        return torch.optim.lr_scheduler.LinearLR(
            optimizer, start_factor=1.0, end_factor=final, total_iters=73
        )

    ours = told_by_us(ScheduleSettings("linear", final=final), 73)
    assert ours == pytest.approx(told_by_torch(make, 73), abs=1e-12)


@pytest.mark.parametrize("steps", [1, 3, 7, 391])
def test_milestones_count_whole_epochs_as_torch_counts_them(steps):
    epochs, milestones = 49, (7, 21, 35)

    def make(optimizer):
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=list(milestones), gamma=0.2)

    per_epoch = told_by_torch(make, epochs - 1)
    settings = ScheduleSettings("multistep", milestones=milestones, factor=0.2)
    ours = told_by_us(settings, epochs * steps, epochs=epochs)[:-1]
    assert ours == pytest.approx([factor for factor in per_epoch for _ in range(steps)])


def test_milestones_are_met_exactly_for_any_number_of_steps_and_epochs():
    settings = ScheduleSettings("multistep", milestones=(3, 6))
    for epochs in range(7, 40):
        for steps in range(1, 20):
            total = epochs * steps
            factors = [step_size_factor(settings, step / total, epochs=epochs) for step in range(total)]
            assert [step for step in range(1, total) if factors[step] != factors[step - 1]] == [
                3 * steps,
                6 * steps,
            ]


@pytest.mark.parametrize("name", ["constant", "cosine", "linear"])
def test_warm_up_rises_in_a_line_as_in_torch_and_the_rest_follows_its_own_schedule(name):
    def warmup(optimizer):
        return torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1e-9, total_iters=20)

    settings = ScheduleSettings(name, warmup=0.2)
    ours = told_by_us(settings, 100)
    assert ours[:21] == pytest.approx(told_by_torch(warmup, 20), abs=1e-8)
    assert ours[20:] == pytest.approx(told_by_us(ScheduleSettings(name), 80), abs=1e-12)


def test_a_constant_step_size_stays():
    assert set(told_by_us(ScheduleSettings("constant"), 50)) == {1.0}
