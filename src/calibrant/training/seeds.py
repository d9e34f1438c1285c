"""Random numbers that depend on where a run is, not on how it got there: a resumed run repeats them."""

import numpy as np
from lightning_fabric.utilities.seed import seed_everything


def seed_of(seed: int, *place: int) -> int:
    """Return the seed of a place in a run, such as the number of a stage and of an epoch.

    Example:
        >>> seed_of(0, 1, 5) == seed_of(0, 1, 5) != seed_of(0, 1, 6)
        True
    """
    return int(np.random.SeedSequence([seed, *place]).generate_state(1)[0])


def start_from(seed: int, *place: int) -> None:
    """Seed every generator of this process for a place in a run."""
    seed_everything(seed_of(seed, *place), verbose=False)
