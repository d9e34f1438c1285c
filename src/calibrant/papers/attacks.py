"""Figure 1 (a) of the SMART paper: the margin against the smallest FGSM step that changes the prediction."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scipy import stats

from calibrant.outcomes import margin
from calibrant.papers.rows import Record
from calibrant.papers.training import configurations


def attack_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Train a network as the worker ``training`` does, and yield how its margins agree with FGSM distances.

    ``pearson`` and ``spearman`` are correlations over the test images whose prediction changes at all,
    ``changed`` is their share.
    """
    from calibrant.training.adversarial import fgsm_distance
    from calibrant.training.config.toml import config_from_table
    from calibrant.training.datasets import load_dataset
    from calibrant.training.run import train

    [table] = configurations(key, settings, seed, data)
    config = config_from_table(table)
    with TemporaryDirectory() as folder:
        run = train(config, folder)
    chosen = dict(vars(config.data))
    images = load_dataset(**chosen.pop("options"), **chosen, seed=seed).test.inputs[: settings["images"]]
    distance = fgsm_distance(run.network, images).double()
    margins = margin(run.predictions["test"].to_logits()[: len(images)].double())
    changed = distance.isfinite()
    pair = margins[changed].numpy(), distance[changed].numpy()
    yield Record(
        {},
        {
            "pearson": float(stats.pearsonr(*pair).statistic),
            "spearman": float(stats.spearmanr(*pair).statistic),
            "changed": float(changed.double().mean()),
        },
    )
