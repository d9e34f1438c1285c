"""Samples since a change seems to have begun, so that a long calm time before does not hide its direction."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from calibrant.inputs import Floats, Integers
from calibrant.monitoring.reference import DriftReference

#: Sums are whole numbers of this unit: exact, so they do not depend on where batches end.
ONSET_UNIT = 2.0**-32


class Onset:
    """Number and mean gap of the samples since a change in each group and direction seems to have begun.

    The sum of how far each sample's ``correct - confidence`` is beyond the region of its group starts again
    from zero whenever it would fall below (Page's CUSUM). Without a change it does so all the time; with one
    it stops, and the last start is the likeliest begin of the change. Sums are whole numbers of 2 to the -32.

    Attributes:
        excess: The sum, shape ``(groups, 2)``: overconfident, underconfident.
        count: Number of samples since its last start.
        gap_sum: Their sum of ``correct - confidence``.

    References:
        Page, "Continuous inspection schemes", Biometrika 1954.
    """

    def __init__(self, reference: DriftReference) -> None:
        slack = reference.tolerance
        region = np.array([(g.region[0] - slack, g.region[1] + slack) for g in reference.groups])
        self._region = _whole(region)
        self.excess: Integers = np.zeros(region.shape, dtype=np.int64)
        self.count: Integers = np.zeros(region.shape, dtype=np.int64)
        self.gap_sum: Integers = np.zeros(region.shape, dtype=np.int64)

    def read(self, x: Floats, groups: Mapping[int, npt.NDArray[np.intp]]) -> None:
        """Read ``correct - confidence`` of samples in the order of time, and the rows of each group."""
        whole = _whole(x)
        for group, rows in groups.items():
            self._read(group, whole[rows])

    def _read(self, group: int, x: Integers) -> None:
        n = len(x)
        total = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(x, out=total[1:])
        low, high = self._region[group]
        for d, bound in enumerate((low, high)):
            beyond = np.arange(n + 1)
            beyond *= bound
            beyond -= total
            if d == 1:
                np.negative(beyond, out=beyond)
            start = n - int(beyond[::-1].argmin())  # the last of equal ones
            if self.excess[group, d] + beyond[start] <= 0:
                self.excess[group, d] = beyond[n] - beyond[start]
                self.count[group, d] = n - start
                self.gap_sum[group, d] = total[n] - total[start]
            else:
                self.excess[group, d] += beyond[n]
                self.count[group, d] += n
                self.gap_sum[group, d] += total[n]

    def gap(self, group: int, direction: int, otherwise: float) -> float:
        """Return the mean gap since the change, or another number if there are no samples since."""
        n = int(self.count[group, direction])
        return float(self.gap_sum[group, direction]) * ONSET_UNIT / n if n else otherwise


def _whole(x: Floats) -> Integers:
    return np.asarray(np.rint(x / ONSET_UNIT), dtype=np.int64)
