"""Adam takes the steps that torch's own takes."""

import pytest
import torch

from calibrant.posthoc.fitting.adam import Adam


def test_the_steps_are_those_of_torch():
    ours = [torch.tensor([1.0, -2.0, 3.0], requires_grad=True), torch.tensor([[0.5]], requires_grad=True)]
    theirs = [part.detach().clone().requires_grad_() for part in ours]
    adam, reference = Adam(ours, learning_rate=0.05), torch.optim.Adam(theirs, lr=0.05)

    def loss(parts):
        return (parts[0] ** 4).sum() + torch.cos(parts[1] * parts[0].sum()).sum()

    for _ in range(50):
        adam.step(loss(ours))
        reference.zero_grad()
        loss(theirs).backward()
        reference.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.detach().numpy() == pytest.approx(other.detach().numpy(), rel=1e-4)
