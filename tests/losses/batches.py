"""Small seeded batches, and the plain definitions that several tests compare with."""

import torch


def batch(n=12, k=5, *, spread=2.0, seed=0):
    """Logits in double precision and labels of all classes, in no order."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n, k, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, k, (n,), generator=generator)


def gradient(loss, logits, labels):
    """Gradient of the summed loss in the logits."""
    leaf = logits.detach().clone().requires_grad_()
    loss(leaf, labels).sum().backward()
    return leaf.grad


def chained(slope, logits, labels):
    """Gradient in the logits of a loss whose slope in the true class's probability is given."""
    rows = []
    for z, y in zip(logits, labels.tolist(), strict=True):
        p = torch.softmax(z, dim=0)
        onehot = torch.zeros_like(p)
        onehot[y] = 1
        rows.append(slope(float(p[y])) * p[y] * (onehot - p))
    return torch.stack(rows)
