"""Calibrators on disk: what is loaded is what was saved, and nothing else passes for one."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from calibrant.errors import FormatError
from calibrant.posthoc import Calibrator, Chain, TemperatureScaling, load_calibrator

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
        FormatError, match="^calibrator.safetensors: expected a safetensors file, got one that"
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
    with pytest.raises(FormatError, match="damaged one .the method 'Astrology' is not known here"):
        load_calibrator(saved)


def test_a_missing_part_is_refused(saved):
    save_file({"other": LOGITS}, saved, metadata=_header(saved))
    with pytest.raises(FormatError, match="expected a complete calibrator, got a damaged one"):
        load_calibrator(saved)


def _header(path):
    with safe_open(path, framework="pt") as file:
        return file.metadata()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(
        FormatError, match="^absent.safetensors: expected a saved calibrator, got no such file"
    ):
        load_calibrator(tmp_path / "absent.safetensors")
