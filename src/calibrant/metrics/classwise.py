"""Classwise calibration error: are all class probabilities honest, not only the largest?"""

import numpy as np
import torch

from calibrant.bins import equal_width_index
from calibrant.inputs import ArrayLike, check_count, check_labels, check_probs


def classwise_calibration_error(probs: ArrayLike, labels: ArrayLike, *, n_bins: int = 15) -> float:
    r"""Mean over classes of the binned gap between a class's probability and its frequency.

    .. math:: \mathrm{cwECE} = \frac{1}{k} \sum_c \sum_b \frac{n_{cb}}{n}\,
        |\mathrm{freq}_{cb} - \mathrm{prob}_{cb}|

    Bins are right-closed and of equal width. Also known as CECE, and as the static calibration error
    of Nixon et al.

    Example:
        >>> round(classwise_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10), 6)
        0.35

    References:
        Nixon et al., "Measuring Calibration in Deep Learning", CVPR workshops 2019.
        Kull et al., "Beyond temperature scaling", NeurIPS 2019.
    """
    p = check_probs(probs)
    n, k = p.shape
    y = check_labels(labels, n=n, k=k).to(p.device)
    n_bins = check_count(n_bins, "n_bins")
    surplus = p.sum(dim=0, dtype=torch.float64) - torch.bincount(y, minlength=k)
    # A row sums to one, so few of its entries leave the lowest bin: only those are placed, and the
    # lowest bin is what remains of the column's sum.
    rows, columns = (p > _below(1 / n_bins, p.dtype)).nonzero(as_tuple=True)
    values = p[rows, columns]
    place = columns.cpu().numpy() * n_bins + equal_width_index(values.cpu().numpy(), n_bins)
    excess = (values.double() - (y[rows] == columns).double()).cpu().numpy()
    # NumPy forgets that weights are floats when there are none.
    gaps = np.bincount(place, weights=excess, minlength=k * n_bins).astype(np.float64).reshape(k, n_bins)
    gaps[:, 0] = surplus.cpu().numpy() - gaps[:, 1:].sum(axis=1)
    return float(np.abs(gaps).sum() / (n * k))


def _below(edge: float, dtype: torch.dtype) -> float:
    """Return the largest number of the type that does not exceed the edge: comparisons stay exact."""
    rounded = torch.tensor(edge, dtype=dtype)
    if float(rounded) > edge:
        rounded = torch.nextafter(rounded, torch.zeros_like(rounded))
    return float(rounded)
