"""Damaged files: a flipped bit is refused, or changes nothing."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from calibrant import Predictions, load_predictions, save_predictions
from calibrant.errors import CalibrantError, FormatError, InputError
from calibrant.posthoc import SMART, SMARTPaper, load_calibrator
from calibrant.streams import open_stream

FLIPS = 60


def predictions(n):
    rng = np.random.default_rng(0)
    return Predictions(
        logits=rng.normal(size=(n, 5)).astype(np.float32),
        labels=rng.integers(0, 5, n),
        features=rng.normal(size=(n, 3)).astype(np.float32),
        weights=rng.random(n),
        groups=rng.choice(["law", "art"], n),
        class_names=["ant", "bee", "cat", "dog", "elk"],
        metadata={"model": "small"},
    )


def contents(path):
    p = load_predictions(path)
    groups = None if p.groups is None else p.groups.values
    return [p.logits, p.labels, p.features, p.weights, groups, p.class_names, dict(p.metadata)]


def calibrated(path):
    loaded = load_calibrator(path)
    return [loaded.predict_log_proba(predictions(20).logits).shape, *loaded.state_dict().values()]


def same(one, other):
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def silently_changed(path, read, rng):
    """Flip one random bit at a time; return how many flips change what is read without an error."""
    whole, expected = path.read_bytes(), read(path)
    changed = 0
    for _ in range(FLIPS):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        with suppress(CalibrantError):
            changed += not same(read(path), expected)
    path.write_bytes(whole)
    return changed


@pytest.mark.parametrize("suffix", [".parquet", ".safetensors", ".npz"])
def test_a_flipped_bit_of_predictions_is_noticed_or_harmless(suffix, tmp_path):
    rng = np.random.default_rng(1)
    for n in (4, 300):  # mostly notes and names, mostly numbers
        path = tmp_path / f"predictions{suffix}"
        save_predictions(predictions(n), path)
        assert silently_changed(path, contents, rng) == 0


def test_a_flipped_bit_of_a_calibrator_is_noticed_or_harmless(tmp_path):
    path = tmp_path / "calibrator.safetensors"
    p = predictions(100)
    SMART.fit(p.logits, p.labels).save(path)
    assert silently_changed(path, calibrated, np.random.default_rng(2)) == 0


def test_a_stream_notices_a_damaged_page(tmp_path):
    path = tmp_path / "predictions.parquet"
    save_predictions(predictions(300), path)
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"^predictions.parquet, row group 0: .*(CRC|checksum)"):
        list(open_stream(tmp_path).batches())


def test_tensors_that_another_program_changed_beside_their_digests_are_refused(tmp_path):
    path = tmp_path / "predictions.safetensors"
    save_predictions(predictions(4), path)
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    save_file(tensors | {"labels": 4 - tensors["labels"]}, path, metadata=header)
    with pytest.raises(FormatError, match="labels: expected the content that its digest names, got other"):
        load_predictions(path)
    del header["calibrant_digests"]
    save_file(tensors | {"labels": 4 - tensors["labels"]}, path, metadata=header)
    assert torch.equal(load_predictions(path).labels, 4 - tensors["labels"])


def test_digests_whose_name_was_damaged_are_missed(tmp_path):
    path = tmp_path / "predictions.safetensors"
    save_predictions(predictions(4), path)
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    # Sixteen bytes have changed places with as many of the metadata.
    digests = header.pop("calibrant_digests")
    header |= {"calibrant_metadata": '{"mo' + digests[4:], "digests": '{"logdel": "small"}'}
    del header["metadata"]
    save_file(tensors, path, metadata=header)
    with pytest.raises(FormatError, match="calibrant_digests: expected the digests under this name"):
        load_predictions(path)


def test_equal_fits_have_equal_digests(tmp_path):
    p = predictions(100)
    digests = []
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        path = tmp_path / f"{name}.safetensors"
        SMARTPaper.fit(p.logits, p.labels, epochs=2, seed=seed).save(path)
        with safe_open(path, framework="pt") as file:
            digests.append(file.metadata()["digest"])
    assert digests[0] == digests[1] != digests[2]


def test_arrays_that_a_small_file_claims_to_hold_are_refused_by_their_headers(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, probs=np.zeros((3000, 50)), labels=np.zeros(3, dtype=int))
    read = []
    monkeypatch.setattr("calibrant.data.archives._entry", lambda _, key: read.append(key))
    with pytest.raises(InputError, match=r"^a.npz: labels: expected 3000 entries, one per prediction, got 3"):
        load_predictions(path)
    np.savez_compressed(path, probs=np.zeros((3000, 50)), labels=np.zeros(3000, dtype=int))
    monkeypatch.setattr("calibrant.data.archives._FEW_BYTES", 1e6)
    with pytest.raises(
        InputError, match=r"^a.npz: expected arrays of at most .* which are read as a stream$"
    ):
        load_predictions(path)
    assert not read
