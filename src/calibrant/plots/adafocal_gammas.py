"""AdaFocal's gammas over epochs: how the loss answered what validation said, bin by bin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import to_tensor
from calibrant.plots import style
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class AdaFocalGammasDisplay(Display):
    """A field of gammas, epochs from left to right and bins of confidence from bottom to top.

    Light cells hold high gammas, which calm an overconfident bin; hatched cells hold negative ones, of the
    inverse focal loss, which stir up an underconfident bin.

    Args:
        gamma: Gammas of shape ``(epochs, bins)``.
        first_epoch: Number of the first epoch.
    """

    gamma: Tensor
    first_epoch: int = 1

    ratio = 0.7

    @classmethod
    def from_history(
        cls, history: Sequence[Mapping[str, Any]], *, first_epoch: int = 1, **place: Unpack[Place]
    ) -> Self:
        """Draw what an AdaFocal loss recorded.

        Args:
            history: One entry per epoch, with the gammas of the bins under ``gammas``; other keys and entries
                without it, such as those of other losses, are left out.
            first_epoch: Number of the first epoch.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        rows = [to_tensor(entry["gammas"], "gammas").double().cpu() for entry in history if "gammas" in entry]
        if not rows or len({row.shape for row in rows}) > 1 or rows[0].ndim != 1:
            raise InputError(
                "history: expected entries with as many gammas in each epoch, got "
                f"{sorted({tuple(row.shape) for row in rows}) or 'none'}; pass that of an AdaFocal loss"
            )
        return cls(torch.stack(rows), first_epoch).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put the field, its scale, and hatches where gammas are negative on axes."""
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Rectangle
        from matplotlib.ticker import MaxNLocator

        field = self.gamma.T.numpy()
        bins, epochs = field.shape
        xs, ys = np.arange(epochs + 1) + self.first_epoch - 0.5, np.arange(bins + 1) + 0.5
        # Viewers show thin lines between cells that only touch.
        seamless: dict[str, Any] = {"edgecolors": "face", "linewidth": 0.6}
        mesh = ax.pcolormesh(xs, ys, field, cmap="cividis", **seamless)
        below = np.argwhere(field < 0)
        if len(below):
            cells = [Rectangle((xs[epoch], ys[number]), 1, 1) for number, epoch in below]
            look: dict[str, Any] = {"facecolor": "none", "edgecolor": "white", "linewidth": 0}
            ax.add_collection(PatchCollection(cells, hatch="//////", **look))
        scale = ax.inset_axes((1.03, 0, 0.045, 1))
        bar = style.figure_of(ax).colorbar(mesh, cax=scale)
        bar.set_label("gamma" + (" (hatched: below 0)" if len(below) else ""))
        bar.outline.set_linewidth(0.6)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set_xlabel("epoch")
        ax.set_ylabel("bin of confidence, surest on top")
