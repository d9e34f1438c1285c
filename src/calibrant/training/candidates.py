"""Choose among configurations, such as those of several gammas of the focal loss, by the validation part."""

from collections.abc import Sequence
from pathlib import Path

from calibrant.errors import InputError
from calibrant.evaluation.evaluate import evaluate
from calibrant.training.config.settings import Config
from calibrant.training.run import Run, train


def train_best(configs: Sequence[Config], folder: str | Path, *, resume: bool = False) -> Run:
    """Train every configuration and return the run with the lowest NLL on the validation part.

    The NLL is used whatever the training loss is, because losses with different options are on different
    scales. All runs stay in the folder.

    Args:
        configs: The candidates; the first of equals is chosen.
        folder: Where to write; run ``i`` is in ``folder/i``, from 0.
        resume: Continue the runs that are there already; finished ones are not trained again.

    Example:
        Choose the exponent of the focal loss::

            gammas = [f"training.loss=focal(gamma={gamma})" for gamma in (1, 2, 3, 5)]
            run = train_best([load_config("my.toml", [gamma]) for gamma in gammas], "runs/focal")
            run.config.training.loss
    """
    if not configs:
        raise InputError("configs: expected at least one configuration, got none")
    runs = [train(config, Path(folder) / str(place), resume=resume) for place, config in enumerate(configs)]
    return min(runs, key=_validation_nll)


def _validation_nll(run: Run) -> float:
    return evaluate(run.predictions["validation"], measures=("nll",)).metrics["nll"]
