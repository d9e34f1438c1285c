"""Calibrators on disk: what is loaded is what was saved, and nothing else passes for one."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from calibrant.errors import FormatError
from calibrant.posthoc import (
    ByGroup,
    Calibrator,
    ConfidenceCalibrator,
    FrequencyCorrection,
    GroupCalibration,
    IntraOrderPreserving,
    LabelCalibrator,
    SMARTPaper,
    TemperatureScaling,
    VectorScaling,
    load_calibrator,
)
from calibrant.posthoc.chain import Chain
from tests.posthoc.mutations import check_mutations

LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.0, 0.1, 0.3]])


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "calibrator.safetensors"
    TemperatureScaling(2.5, n_classes=3).save(path)
    return path


def rewrite(path, **changes):
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    save_file(tensors, path, metadata={**header, **changes})


def test_a_calibrator_comes_back_the_same(saved):
    for loaded in (load_calibrator(saved), TemperatureScaling.load(saved), Calibrator.load(saved)):
        assert type(loaded) is TemperatureScaling
        assert loaded.n_classes == 3
        assert torch.equal(loaded(LOGITS), TemperatureScaling(2.5)(LOGITS))


def test_a_chain_comes_back_with_its_parts(tmp_path):
    path = tmp_path / "chain.safetensors"
    chain = Chain(TemperatureScaling(2.0), Chain(TemperatureScaling(0.5), TemperatureScaling(3.0)))
    chain.save(path)
    assert torch.equal(load_calibrator(path)(LOGITS), chain(LOGITS))


def test_the_file_says_what_it_is(saved):
    with safe_open(saved, framework="pt") as file:
        header = file.metadata()
    assert header["format"] == "calibrant-calibrator"
    assert header["format_version"] == "1"
    assert json.loads(header["calibrator"])["method"] == "TemperatureScaling"


def test_another_method_is_not_taken_for_the_one_asked_for(saved):
    with pytest.raises(FormatError, match="expected a Chain, got a TemperatureScaling; use load_calibrator"):
        Chain.load(saved)


def test_a_truncated_file_is_refused(saved):
    saved.write_bytes(saved.read_bytes()[:-3])
    with pytest.raises(
        FormatError, match="^calibrator.safetensors: expected a safetensors file, got a file that cannot"
    ):
        load_calibrator(saved)


def test_other_safetensors_are_refused(tmp_path):
    save_file({"logits": LOGITS}, tmp_path / "other.safetensors")
    with pytest.raises(
        FormatError, match="^other.safetensors: expected a saved calibrator, got a safetensors file of"
    ):
        load_calibrator(tmp_path / "other.safetensors")


def test_an_unknown_version_is_refused(saved):
    rewrite(saved, format_version="99")
    with pytest.raises(FormatError, match="expected format version 1, got 99, written by calibrant"):
        load_calibrator(saved)


def test_an_unknown_method_is_refused(saved):
    rewrite(saved, calibrator=json.dumps({"method": "Astrology"}))
    with pytest.raises(
        FormatError, match="^calibrator.safetensors: method: expected one that is known here, got 'Astrology'"
    ):
        load_calibrator(saved)


def test_a_missing_part_is_refused(saved):
    save_file({"other": LOGITS}, saved, metadata=_header(saved))
    with pytest.raises(
        FormatError, match="^calibrator.safetensors: temperature: expected a tensor, got none"
    ):
        load_calibrator(saved)


def _header(path):
    with safe_open(path, framework="pt") as file:
        return file.metadata()


def by_hand():
    """Calibrators that are not in the catalogue."""
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(200, generator=rng)
    right = (torch.rand(200, generator=rng) < torch.sigmoid(scores)).long()
    topics = ["law" if each < 0 else "art" for each in torch.randn(200, generator=rng).tolist()]
    labels = torch.stack([right, 1 - right], dim=1)
    both = torch.stack([scores, -scores], dim=1)
    return [
        TemperatureScaling.then(VectorScaling).fit(scores, right),
        ByGroup.fit(scores, right, groups=topics),
        FrequencyCorrection.fit(both, right, frequencies=[0.2, 0.8]),
        ConfidenceCalibrator.fit(scores, right, method="isotonic"),
        LabelCalibrator.fit_labels(both, labels),
        LabelCalibrator.fit_labels(both, labels, maps="separate"),
        IntraOrderPreserving.fit(both, right, variant="diagonal"),
        SMARTPaper.fit(both, right, indicator="logits", epochs=2),
        GroupCalibration.fit(both, right, n_partitions=2),
    ]


def test_changed_numbers_of_calibrators_outside_the_catalogue_are_refused(tmp_path):
    for calibrator in by_hand():
        check_mutations(calibrator, tmp_path / "calibrator.safetensors", LOGITS[:, :2])


def deep(levels):
    return '{"method": "Chain", "parts": {"first": ' * levels + "0" + "}}" * levels


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        ("", "expected a complete calibrator, got a file that cannot be read as such"),
        ("[]", "expected a table, got"),
        ("1" * 5000, "expected a complete calibrator, got"),
        (deep(10_000), "nested more than 100 deep"),
        ({"method": ["Chain"]}, "method: expected text, got"),
        ({"method": "Calibrator"}, "method: expected one that is known here"),
        ({"method": "ScoreMap"}, "method: expected one that is known here"),
        ({"n_classes": 2.5}, "n_classes: expected a whole number"),
        ({"n_classes": 10**12}, "n_classes: expected a number from 1 to"),
        ({"n_classes": 0}, "n_classes: expected a number from 1 to"),
        ({"buffers": []}, "temperature: expected a tensor, got none"),
        ({"buffers": ["temperature", "forward"]}, "forward: expected a tensor, got none"),
        ({"method": "Identity"}, "temperature: expected no such tensor, got one"),
        ({"method": "Identity", "buffers": []}, "temperature: expected no such tensor, got one"),
        ({"method": "VectorScaling"}, "temperature: expected no such tensor, got one"),
        ({"parts": {"first": {"method": "Identity"}}}, "parts: expected none, got first"),
        ({"method": "Chain", "parts": {}, "buffers": []}, "parts: expected first, second, got none"),
        (
            {
                "method": "Chain",
                "buffers": [],
                "parts": {name: {"method": "Chain"} for name in ("first", "second")},
            },
            "first.parts: expected first, second, got none",
        ),
        (
            {
                "method": "Chain",
                "buffers": [],
                "parts": {name: {"method": "Identity", "n_classes": 7} for name in ("first", "second")},
            },
            "first.n_classes: expected 3 or none, got 7",
        ),
        ({"method": "SMART", "buffers": []}, "indicator: expected a value, got none"),
        ({"method": "LabelCalibrator", "options": {"names": "abc"}}, "names: expected a list, got 'abc'"),
    ],
)
def test_a_description_that_fits_no_calibrator_is_refused(saved, described, reason):
    if isinstance(described, dict):
        described = json.dumps(json.loads(_header(saved)["calibrator"]) | described)
    rewrite(saved, calibrator=described)
    with pytest.raises(FormatError, match=f"^calibrator.safetensors: .*{reason}") as caught:
        load_calibrator(saved)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(
        FormatError, match="^absent.safetensors: expected a saved calibrator, got no such file"
    ):
        load_calibrator(tmp_path / "absent.safetensors")
