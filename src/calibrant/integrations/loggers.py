"""Loggers: calibration measures and the report in MLflow, TensorBoard or Weights & Biases.

Each package is imported when its logger is made; none of them is a dependency of Calibrant.
"""

import importlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, InputError, MissingPackageError, did_you_mean
from calibrant.files import atomic_path
from calibrant.report.describe import describe
from calibrant.report.sources import Sources
from calibrant.report.write import write_report

#: The name under which loggers show the report.
REPORT_NAME = "calibration_report"
# What is imported, and the package to install.
_PACKAGES = {
    "mlflow": ("mlflow", "mlflow-skinny"),
    "tensorboard": ("torch.utils.tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
}
# MLflow refuses metrics whose names have other characters.
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]", re.ASCII)


class Logger(Protocol):
    """Stores measures and reports of a run."""

    def log_measures(self, step: int, values: Mapping[str, float]) -> None:
        """Store measures by name; steps never fall."""

    def log_report(self, path: Path) -> None:
        """Store a page of Calibrant, an HTML file."""

    def close(self) -> None:
        """Finish the run, if this logger began it."""


class TensorBoardLogger:
    """Write measures as TensorBoard's scalars.

    TensorBoard shows no pages: the report is copied next to its files, and a text names it.

    Args:
        folder: Folder of TensorBoard's files.
        writer: A ``SummaryWriter`` to use instead of a new one; it is not closed.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, writer: Any = None) -> None:  # noqa: ANN401  # of either package
        self._own = writer is None
        if writer is None:
            made_by = _package(*_PACKAGES["tensorboard"])
            writer = made_by.SummaryWriter(None if folder is None else str(folder))
        self._writer = writer

    def log_measures(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_report(self, path: Path) -> None:
        """Copy the report next to TensorBoard's files, and write a text that names it."""
        folder = Path(getattr(self._writer, "log_dir", None) or self._writer.logdir)  # tensorboardX's name
        target = folder / f"{REPORT_NAME}.html"
        with atomic_path(target) as temporary:
            shutil.copyfile(path, temporary)
        self._writer.add_text(REPORT_NAME, f"`{target.resolve()}`")
        self._writer.flush()

    def close(self) -> None:
        """Close the files, unless the writer was given."""
        if self._own:
            self._writer.close()


class MLflowLogger:
    """Log measures as metrics of an MLflow run, and the report as its artifact.

    Without arguments an active run of MLflow is continued, if there is one. Otherwise a new run begins.

    Args:
        where: Tracking address, or a folder; MLflow's own setting if not given.
        experiment: Name of the experiment of a new run.
        run_name: Name of a new run.
        run_id: A run to continue; it is not ended.
        client: An ``MlflowClient`` to use instead of a new one.
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | None = None,
        *,
        experiment: str = "calibrant",
        run_name: str | None = None,
        run_id: str | None = None,
        client: Any = None,  # noqa: ANN401  # an MlflowClient
    ) -> None:
        mlflow = _package(*_PACKAGES["mlflow"])
        with _answers("mlflow"):
            self._client = client or mlflow.MlflowClient(tracking_uri=_address(where))
            active = mlflow.active_run() if where is None and run_id is None else None
            self._own = run_id is None and active is None
            self.run_id = run_id or (active.info.run_id if active else self._begin(experiment, run_name))

    def _begin(self, experiment: str, run_name: str | None) -> str:
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self._client.create_experiment(experiment)
        return str(self._client.create_run(number, run_name=run_name).info.run_id)

    def log_measures(self, step: int, values: Mapping[str, float]) -> None:
        """Log metrics; characters that MLflow refuses in names become underscores."""
        with _answers("mlflow"):
            for name, value in values.items():
                self._client.log_metric(self.run_id, _NOT_IN_NAMES.sub("_", name), float(value), step=step)

    def log_report(self, path: Path) -> None:
        """Log the report as an artifact."""
        with _answers("mlflow"):
            self._client.log_artifact(self.run_id, str(path))

    def close(self) -> None:
        """End the run, if this logger began it."""
        if self._own:
            with _answers("mlflow"):
                self._client.set_terminated(self.run_id)


class WandbLogger:
    """Log measures and the report to a run of Weights & Biases.

    An active run is continued, if there is one. A new run is offline, so nothing leaves the machine before
    ``wandb sync``, unless the variable ``WANDB_MODE`` has another mode.

    Args:
        project: Project of a new run.
        folder: Folder of a new run's files; the current one if not given.
        run_name: Name of a new run.
        run: A run to continue; it is not ended.
    """

    def __init__(
        self,
        project: str | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        run_name: str | None = None,
        run: Any = None,  # noqa: ANN401  # a wandb.Run
    ) -> None:
        self._wandb = _package(*_PACKAGES["wandb"])
        given = run or self._wandb.run
        self._own = given is None
        with _answers("wandb"):
            self.run = given or self._wandb.init(
                project=project or "calibrant",
                dir=None if folder is None else str(folder),
                name=run_name,
                mode=os.environ.get("WANDB_MODE") or "offline",
            )

    def log_measures(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step."""
        with _answers("wandb"):
            self.run.log(dict(values), step=step)

    def log_report(self, path: Path) -> None:
        """Log the report as a page that Weights & Biases shows."""
        page = Path(path).read_text(encoding="utf-8")
        with _answers("wandb"):
            self.run.log({REPORT_NAME: self._wandb.Html(page, inject=False)})

    def close(self) -> None:
        """Finish the run, if this logger began it."""
        if self._own:
            with _answers("wandb"):
                self.run.finish()


def find_logger(text: str, *, folder: Path) -> Callable[[], Logger]:
    """Return what makes the logger that a text names, such as ``"mlflow"`` or ``"wandb=my-project"``.

    Args:
        text: ``mlflow``, ``tensorboard`` or ``wandb``; after an equals sign the tracking address or folder,
            the folder, or the project. A package that is not installed is refused.
        folder: Folder of the run of Calibrant: its name is the name of the run, and TensorBoard's files are
            in its subfolder ``tensorboard``.
    """
    kind, _, where = text.partition("=")
    makers: dict[str, Callable[[], Logger]] = {
        "mlflow": lambda: MLflowLogger(where or None, run_name=folder.name),
        "tensorboard": lambda: TensorBoardLogger(where or folder / "tensorboard"),
        "wandb": lambda: WandbLogger(where or None, run_name=folder.name),
    }
    if kind not in makers:
        raise InputError(
            f"log: expected {', '.join(makers)}, or one of them with an equals sign and a place, "
            f"got {text!r}{did_you_mean(kind, makers)}"
        )
    _package(*_PACKAGES[kind])
    return makers[kind]


def check_report(path: str | os.PathLike[str]) -> Path:
    """Return the file of a report; one that cannot be written is refused before training."""
    target = Path(path)
    if target.suffix != ".html" or target.is_dir():
        raise InputError(f"report: expected the name of an HTML file, such as report.html, got {target}")
    if not target.parent.is_dir():
        raise InputError(f"report: expected a file in a folder that exists, got {target}; create the folder")
    return target


def write_validation_report(predictions: Predictions, path: str | os.PathLike[str]) -> Path:
    """Write the report of a validation set in a training loop; return its path."""
    target = Path(path)
    names = {"test": "the validation set"}
    write_report(describe(predictions, Sources(target.stem, test=predictions, names=names)), target)
    return target


def _package(module: str, package: str) -> Any:  # noqa: ANN401  # a module
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(package, package, command=f"pip install {package}") from error


def _address(where: str | os.PathLike[str] | None) -> str | None:
    """Return a tracking address; a folder becomes one."""
    if where is None or "://" in str(where) or str(where) in ("databricks", "uc"):
        return None if where is None else str(where)
    return Path(where).absolute().as_uri()


@contextmanager
def _answers(kind: str) -> Iterator[None]:
    """Turn an error of a tracker, such as a server that does not answer, into one sentence."""
    try:
        yield
    except CalibrantError:
        raise
    except Exception as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{kind}: expected a tracker that takes the results, got an error: {detail}"
        ) from error
