"""``calibrant predict``: a folder of pictures and a network become a file of predictions."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from calibrant import load_predictions
from calibrant.data.columns import Columns
from calibrant.errors import InputError
from calibrant.training import image_predictions, train
from calibrant.training.datasets import load_dataset, picture_files
from calibrant.training.datasets.pictures import decode
from calibrant.training.image_predictions import find_pictures, network_of_run, own_network, predict_images
from tests.training.small import small_config

CLASSES = ("cat", "dog", "owl")
NETWORK = "tests.cli.test_predict:make"


def make():
    """Return a network of someone's own: three classes, six features."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 6), nn.Linear(6, 3))


def needs_sizes(n_classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), n_classes))


def one_number():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(1))


def no_network():
    return "network"


def of_32_pixels():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))


class Elsewhere(nn.Module):
    """Keeps its features to itself."""

    def forward(self, images):
        return images.mean(dim=(2, 3))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, generator = tmp_path_factory.mktemp("predict") / "photos", np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            height, width = generator.integers(20, 40, size=2)
            pixels = generator.integers(0, 128, size=(height, width, 3), dtype=np.uint8)
            pixels[..., label] += 120
            Image.fromarray(pixels).save(folder / name / f"{number:03}.png")
    return folder


@pytest.fixture(scope="module")
def flat(pictures):
    """The same pictures of one class, without folders."""
    return pictures / "dog"


@pytest.fixture
def weights(tmp_path):
    """Return the weights of the network, in three forms."""
    torch.manual_seed(3)
    state = make().state_dict()
    torch.save(state, tmp_path / "plain.pt")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "inside.pt")
    save_file(state, tmp_path / "w.safetensors")
    return state


def expected_logits(files, state, size=16):
    """Do by hand what the command does."""
    network = make().eval()
    network.load_state_dict(state)
    rows = []
    for file in files:
        with Image.open(file) as opened:
            side = 0.875 * min(opened.size)
            box = [(opened.width - side) / 2, (opened.height - side) / 2]
            box += [box[0] + side, box[1] + side]
            pixels = np.asarray(opened.resize((size, size), Image.Resampling.BILINEAR, box=box))
        image = torch.from_numpy(pixels / 255).permute(2, 0, 1).float()
        mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3])
        rows.append(network(((image - mean[:, None, None]) / std[:, None, None])[None])[0])
    return torch.stack(rows).detach()


@pytest.mark.parametrize("file", ["plain.pt", "inside.pt", "w.safetensors"])
def test_a_network_of_ones_own_predicts_a_folder(run, tmp_path, pictures, weights, file):
    own = ("--network", NETWORK, "--weights", tmp_path / file, "--size", 16)
    normal = ("--mean", "0.5,0.4,0.3", "--std", "0.2,0.25,0.3")
    out = tmp_path / "p.npz"
    code, printed, err = run(
        "predict", pictures, *own, *normal, "--batch-size", 5, "--features", "--out", out
    )
    assert (code, err) == (0, "")
    assert printed.endswith("p.npz: 36 predictions of 3 classes, with labels\n")
    found = load_predictions(out, columns=Columns(ids="ids"))
    assert found.class_names == CLASSES
    assert found.labels.tolist() == [0] * 12 + [1] * 12 + [2] * 12
    files = [pictures / name / f"{number:03}.png" for name in CLASSES for number in range(12)]
    torch.testing.assert_close(found.logits, expected_logits(files, weights), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        found.features @ weights["3.weight"].T + weights["3.bias"], found.logits, rtol=1e-4, atol=1e-4
    )
    assert len(set(found.ids.tolist())) == 36


def test_pictures_without_folders_have_no_labels(run, tmp_path, flat):
    out = tmp_path / "p.npz"
    code, printed, _ = run("predict", flat, "--network", NETWORK, "--size", 16, "--out", out)
    assert code == 0
    assert printed.endswith("p.npz: 12 predictions of 3 classes, without labels\n")
    found = load_predictions(out, need_labels=False)
    assert (found.n, found.labels, found.class_names) == (12, None, None)


def test_the_same_picture_has_the_same_id_in_every_file(pictures, tmp_path):
    first = predict_images(find_pictures(pictures), own_network(make, size=16))
    (tmp_path / "photos" / "owl").mkdir(parents=True)
    for name in CLASSES[:2]:
        (tmp_path / "photos" / name).mkdir()
    content = (pictures / "dog" / "003.png").read_bytes()
    (tmp_path / "photos" / "dog" / "003.png").write_bytes(content)
    second = predict_images(find_pictures(tmp_path / "photos"), own_network(make, size=16))
    assert second.labels.tolist() == [1]
    assert second.ids.tolist() == [first.ids.tolist()[12 + 3]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, pictures):
    """A run on these pictures."""
    options = "{size = 12, crop = 0.9}"
    config = small_config(
        "data.name=image_folder", f"data.path={pictures}", f"data.options={options}", "data.limit=24"
    )
    return train(config, tmp_path_factory.mktemp("finished") / "run")


def test_the_network_of_a_run_predicts_as_it_did_in_the_run(run, tmp_path, pictures, finished):
    out = tmp_path / "p.npz"
    code, _, err = run("predict", pictures, "--network", finished.folder, "--out", out)
    assert (code, err) == (0, "")
    found = load_predictions(out)
    assert found.class_names == CLASSES
    whole = load_dataset("image_folder", path=pictures, size=12, crop=0.9)
    everything = torch.cat([part.inputs for part in (whole.train, whole.validation, whole.test)])
    labels = torch.cat([part.labels for part in (whole.train, whole.validation, whole.test)])
    with torch.no_grad():
        logits = finished.network(everything)
    expected = sorted(zip(labels.tolist(), logits.tolist(), strict=True))
    for (label, row), (wanted, values) in zip(
        sorted(zip(found.labels.tolist(), found.logits.tolist(), strict=True)), expected, strict=True
    ):
        assert label == wanted
        assert row == pytest.approx(values, abs=1e-4)


def test_some_classes_of_a_run_are_enough(tmp_path, pictures, finished):
    (tmp_path / "owl").mkdir()
    (tmp_path / "owl" / "1.png").write_bytes((pictures / "owl" / "001.png").read_bytes())
    seeing = network_of_run(finished.folder)
    found = predict_images(find_pictures(tmp_path, seeing.class_names), seeing)
    assert (found.labels.tolist(), found.class_names) == ([2], CLASSES)


def test_only_a_batch_of_pictures_is_decoded_at_a_time(pictures, monkeypatch):
    sizes = []

    def counted(files, *arguments, **options):
        sizes.append(len(files))
        return decode(files, *arguments, **options)

    monkeypatch.setattr(picture_files, "decode", counted)
    predict_images(find_pictures(pictures), own_network(make, size=16), batch_size=10)
    assert sizes == [10, 10, 10, 6]


def test_a_factory_that_needs_the_sizes_gets_them(pictures):
    seeing = own_network(needs_sizes, size=8, n_classes=3)
    assert predict_images(find_pictures(pictures), seeing).k == 3


def test_batches_do_not_change_the_predictions(pictures):
    torch.manual_seed(0)
    seeing, found = own_network(make, size=16), find_pictures(pictures)
    one = predict_images(found, seeing, batch_size=1)
    torch.testing.assert_close(one.logits, predict_images(found, seeing, batch_size=100).logits)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--network", "nowhere"],
            "--network: expected the folder of a run or module:function, got 'nowhere'",
        ),
        (["--network", "tests.cli.no_such:make"], "network: expected a module that can be imported"),
        (["--network", "tests.cli.test_predict:mak"], "did you mean 'make'?"),
        (["--network", "tests.cli.test_predict:no_network"], "expected a function that returns an nn.Module"),
        (["--network", "tests.cli.test_predict:one_number"], "expected logits of shape (n, k) with k from 2"),
        (
            ["--network", "tests.cli.test_predict:of_32_pixels", "--size", "16"],
            "--size: expected that of the images of the network, got 16",
        ),
        (
            ["--network", "tests.cli.test_predict:Elsewhere", "--features"],
            "--features: expected a network that ends with a linear layer",
        ),
        (
            ["--network", NETWORK, "--factory", NETWORK],
            "--factory: expected none beside a network of your own",
        ),
        (["--network", NETWORK, "--mean", "0.5"], "--mean: expected three numbers, one for each channel"),
        (["--network", NETWORK, "--mean", "a,b,c"], "--mean: expected three numbers with commas"),
        (["--network", NETWORK, "--std", "1,0,1"], "--std: expected positive numbers"),
        (["--network", NETWORK, "--crop", "2"], "--crop: expected a share above 0, at most 1"),
        (["--network", NETWORK, "--size", "100000"], "--size: expected a whole number of at most 8,192"),
        (["--network", NETWORK, "--batch-size", "0"], "--batch-size: expected a whole number of at least 1"),
        (["--network", NETWORK, "--weights", "absent.pt"], "absent.pt: expected a file or a folder"),
    ],
)
def test_what_cannot_be_is_one_sentence(run, tmp_path, pictures, words, sentence):
    code, out, err = run("predict", pictures, *words, "--out", tmp_path / "p.npz")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
    assert not (tmp_path / "p.npz").exists()


def test_what_a_run_stores_is_not_given_again(run, tmp_path, pictures, finished):
    for option, value in (("--size", "16"), ("--weights", "w.pt"), ("--mean", "0,0,0")):
        code, _, err = run(
            "predict", pictures, "--network", finished.folder, option, value, "--out", tmp_path / "p.npz"
        )
        assert code == 2
        assert f"{option}: expected none for the run in " in err


def test_weights_that_are_code_are_refused(run, tmp_path, pictures):
    torch.save(make(), tmp_path / "whole.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")
    for file, sentence in (
        ("whole.pt", "only tensors are unpickled"),
        ("list.pt", "expected a state_dict of tensors"),
        ("other.pt", "expected the weights of this network, got others"),
    ):
        words = ("--network", NETWORK, "--weights", tmp_path / file, "--out", tmp_path / "p.npz")
        code, _, err = run("predict", pictures, *words)
        assert (code, err.count("\n")) == (2, 1)
        assert sentence in err


def test_code_that_only_the_folder_of_a_run_names_is_not_run(run, tmp_path, pictures):
    name = "tests.cli.test_predict:needs_sizes"
    config = small_config(
        "data.name=image_folder",
        f"data.path={pictures}",
        "data.options={size = 8}",
        "data.limit=24",
        f"model.name={name}",
    )
    folder = train(config, tmp_path / "run").folder
    words = ("predict", pictures, "--network", folder, "--out", tmp_path / "p.npz")
    code, _, err = run(*words)
    assert code == 2
    assert "--factory: expected the function that made the network" in err
    assert run(*words, "--factory", name)[0] == 0


def test_folders_must_be_the_classes_of_the_network(run, tmp_path, pictures, finished):
    (tmp_path / "photos" / "cow").mkdir(parents=True)
    (tmp_path / "photos" / "ant").mkdir()
    (tmp_path / "photos" / "cow" / "1.png").write_bytes((pictures / "owl" / "001.png").read_bytes())
    out = ("--out", tmp_path / "p.npz")
    code, _, err = run("predict", tmp_path / "photos", "--network", finished.folder, *out)
    assert code == 2
    assert "got 'ant'; rename the folder" in err
    code, _, err = run("predict", tmp_path / "photos", "--network", NETWORK, *out)
    assert code == 2
    assert "expected a folder for each of the network's 3 classes, got 2; add empty folders" in err


def test_a_folder_without_pictures_is_refused(tmp_path, run):
    with pytest.raises(InputError, match=r"^images: expected .png, .jpg, .jpeg files, got none"):
        find_pictures(tmp_path)
    (tmp_path / "a.png").write_text("x")
    with pytest.raises(InputError, match="got the file"):
        find_pictures(tmp_path / "a.png")
    code, _, err = run("predict", tmp_path, "--network", NETWORK, "--out", tmp_path / "p.npz")
    assert code == 2
    assert "expected a place apart from" in err


def test_the_network_of_texts_is_refused(tmp_path, monkeypatch):
    class Saved:
        kind = "text"

    monkeypatch.setattr(image_predictions, "read_network", lambda _: Saved())
    with pytest.raises(InputError, match="^network: expected a network of images, got one of text inputs"):
        network_of_run(tmp_path)
