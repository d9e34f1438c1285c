"""The GitHub Action: its step is run in a shell, with the variables that GitHub sets."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.conftest import draw

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEP = next(step for step in ACTION["runs"]["steps"] if step.get("id") == "gate")

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the action needs bash")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Predictions of a calibrated model and of an overconfident one, whose name has a space."""
    folder = tmp_path_factory.mktemp("a project")
    for name, sharpen in (("good one", 1.0), ("bad", 3.0)):
        logits, labels = draw(1500, 4, seed=8, sharpen=sharpen)
        np.savez(folder / f"{name}.npz", logits=logits, labels=labels)
    return folder


@pytest.fixture
def act(folder, tmp_path):
    """Run the step with some inputs; return the exit code, what was printed, the outputs and the summary."""

    def run(**given):
        inputs = {name: each.get("default", "") for name, each in ACTION["inputs"].items()} | given

        def filled(text):
            return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)

        outputs, summary = tmp_path / "outputs", tmp_path / "summary"
        github = {"GITHUB_OUTPUT": outputs, "GITHUB_STEP_SUMMARY": summary, "RUNNER_TEMP": tmp_path}
        environment = os.environ | {name: filled(text) for name, text in STEP["env"].items()}
        environment |= {name: str(path) for name, path in github.items()}
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEP["run"]]
        ended = subprocess.run(
            shell, env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
        found = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        return ended, found, summary.read_text(encoding="utf-8") if summary.exists() else ""

    return run


def test_every_input_reaches_the_step_and_every_output_comes_from_it():
    named = set(re.findall(r"inputs\.([\w-]+)", str(ACTION["runs"])))
    assert named == set(ACTION["inputs"])
    for name, output in ACTION["outputs"].items():
        assert output["value"] == f"${{{{ steps.gate.outputs.{name} }}}}"
        assert f"{name}=" in STEP["run"]
    assert "${{" not in STEP["run"]  # an input with a quote must not become a command


def test_a_model_that_passes_and_one_that_is_worse_than_its_baseline(act):
    ended, outputs, summary = act(predictions="good one.npz", require="ece < 0.1\n\nnll <= 5\n")
    assert (ended.returncode, outputs["outcome"], outputs["exit-code"]) == (0, "passed", "0"), ended.stderr
    assert "| nll &lt;= 5 | passed |" in summary
    assert Path(outputs["summary"]).read_text(encoding="utf-8") == summary
    assert "<testsuite" in Path(outputs["junit"]).read_text(encoding="utf-8")
    ended, outputs, summary = act(predictions="bad.npz", baseline="good one.npz", margin="0.05")
    assert (ended.returncode, outputs["outcome"]) == (3, "failed")
    assert "Changes against the baseline" in summary


@pytest.mark.parametrize(("undecided", "code"), [("fail", 4), ("warn", 0)])
def test_too_few_samples_fail_or_warn(act, undecided, code):
    ended, outputs, _ = act(predictions="good one.npz", require="ece < 0.02", undecided=undecided)
    assert (ended.returncode, outputs["outcome"], outputs["exit-code"]) == (code, "unknown", "4")
    assert ("::warning::" in ended.stdout) is (undecided == "warn")


def test_bad_input_is_an_error_with_its_sentence_and_no_command_is_run(act, folder):
    ended, outputs, summary = act(predictions='$(touch x).npz"; touch y; "', require="ece < 0.1")
    assert (ended.returncode, outputs["outcome"], summary) == (2, "error", "")
    assert "::error::calibrant: " in ended.stdout
    assert not (folder / "x").exists()
    assert not (folder / "y").exists()


def test_the_hook_for_other_repositories_runs_the_gate(run):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    program, *command = hook["entry"].split()
    assert program == "calibrant"
    assert run(*command, "--help")[0] == 0
    assert re.search(hook["files"], "predictions/test.npz")
