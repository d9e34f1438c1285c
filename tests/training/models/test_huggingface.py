"""Sequence classifiers of transformers, with tiny random weights; nothing is downloaded."""

import sys

import pytest
import torch

from calibrant.errors import InputError, MissingPackageError
from calibrant.training.models import make_model

SIZES = {
    "bert": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    "roberta": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    "gpt2": {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 32},
}
WORDS = torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0]])


@pytest.fixture(params=SIZES)
def folder(request, tmp_path, monkeypatch):
    """A checkpoint of a tiny classifier of three classes."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra train)")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = transformers.AutoConfig.for_model(
        request.param, vocab_size=30, num_labels=3, pad_token_id=0, **SIZES[request.param]
    )
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    return tmp_path


def test_logits_are_those_of_the_checkpoint_and_features_lead_to_them(folder):
    import transformers

    reference = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model = make_model("huggingface", n_classes=3, shape=(4,), checkpoint=folder).eval()
    mask = (WORDS != 0).long()
    expected = reference(input_ids=WORDS, attention_mask=mask).logits
    logits, features = model.logits_and_features(WORDS)
    torch.testing.assert_close(logits, expected)
    assert features.shape == (2, model.n_features) == (2, 8)
    torch.testing.assert_close(model.head(features), expected)
    torch.testing.assert_close(
        model({"input_ids": WORDS, "attention_mask": mask, "labels": mask[:, 0]}), expected
    )


def test_random_weights_depend_on_the_seed_and_train(folder):
    options = {"n_classes": 4, "shape": (4,), "checkpoint": folder, "pretrained": False}
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(make_model("huggingface", **options))
    assert all(map(torch.equal, made[0].state_dict().values(), made[1].state_dict().values()))
    torch.nn.functional.cross_entropy(made[0](WORDS), torch.tensor([0, 3])).backward()
    assert made[0].head.weight.grad.any()


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_an_architecture_needs_no_file_without_trained_weights(name, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed (extra train)")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sizes = {**SIZES[name], "vocab_size": 30, "pad_token_id": 0}
    model = make_model("huggingface", n_classes=4, shape=(4,), checkpoint=name, pretrained=False, **sizes)
    assert model(WORDS).shape == (2, 4)
    assert model.n_features == 8


def test_a_checkpoint_for_other_classes_is_refused(folder):
    with pytest.raises(
        InputError, match="^checkpoint: expected a sequence classifier of 4 classes"
    ) as caught:
        make_model("huggingface", n_classes=4, shape=(4,), checkpoint=folder)
    assert "\n" not in str(caught.value)


def test_changes_to_the_configuration_are_made_and_mistyped_ones_refused(folder):
    options = {"n_classes": 3, "shape": (4,), "checkpoint": folder, "pretrained": False}
    model = make_model("huggingface", **options, initializer_range=0.5)
    assert model.model.config.initializer_range == 0.5
    with pytest.raises(InputError, match="got 'initialiser_range'; did you mean 'initializer_range'"):
        make_model("huggingface", **options, initialiser_range=0.5)


def test_a_folder_without_a_model_is_refused(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed (extra train)")
    with pytest.raises(InputError, match="^checkpoint: expected a sequence classifier of 3 classes"):
        make_model("huggingface", n_classes=3, shape=(4,), checkpoint=tmp_path)


def test_without_the_package_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingPackageError, match=r"^huggingface: .*: pip install 'calibrant\[train\]'$"):
        make_model("huggingface", n_classes=3, shape=(4,), checkpoint="anything")


def test_a_text_is_a_row_of_tokens():
    with pytest.raises(InputError, match=r"^shape: expected \(length,\) of a text in tokens"):
        make_model("huggingface", n_classes=3, shape=(1, 8, 8), checkpoint="anything")
