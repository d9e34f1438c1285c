"""Small segmentations with known truth: coarse regions, noisy scores, and a void border."""

import numpy as np
import torch


def scene(n=12, k=4, height=24, width=32, *, seed=0, scale=2.0, dtype=np.float64):
    """Return score maps that are too confident and the masks of their pixels; the first row is ignored."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(size=(n, k, height // 8, width // 8)).repeat(8, axis=2).repeat(8, axis=3)
    scores = scale * (coarse + rng.normal(size=(n, k, height, width)) / 2)
    masks = (coarse + 0.8 * rng.normal(size=(n, k, height, width))).argmax(axis=1).astype(np.uint8)
    masks[:, 0] = 255
    return scores.astype(dtype), masks


def flat(scores, masks):
    """Return the rows, labels and images of all pixels that count."""
    kept = masks != 255
    images = np.broadcast_to(np.arange(len(masks))[:, None, None], masks.shape)
    return np.moveaxis(scores, 1, -1)[kept], masks[kept].astype(np.int64), images[kept].copy()


def uneven(n=20, k=3, *, seed=0):
    """Return logits whose best temperature changes over each image, masks, and the temperatures."""
    generator = torch.Generator().manual_seed(seed)

    def smooth(channels):
        coarse = torch.randn(n, channels, 4, 4, generator=generator)
        return torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear")

    confused = smooth(1) > 0
    true = 4 * smooth(k) * torch.where(confused, 0.15, 1.0)
    p = torch.softmax(true, dim=1)
    masks = torch.distributions.Categorical(probs=p.movedim(1, -1)).sample()
    return torch.where(confused, 3.0, 1.0) * true, masks
