import csv
import json
import sys
from types import SimpleNamespace

import pytest

from calibrant.errors import CalibrantError, FormatError, InputError, MissingPackageError
from calibrant.training.datasets import load_dataset
from calibrant.training.datasets.tokens import Vocabulary

WEATHER = ["will it rain", "is it cold", "how warm is it", "rain again", "sun today"]
MONEY = ["pay my bill", "send money", "what do I owe", "my balance", "pay rent"]


def pairs(n: int) -> list[list[str]]:
    texts = [(text, "weather") for text in WEATHER[:n]] + [(text, "money") for text in MONEY[:n]]
    return [list(pair) for pair in texts]


def write_json(path, **changes):
    content = {"train": pairs(5), "val": pairs(2), "test": pairs(3), "oos_test": [["who am I", "oos"]]}
    path.write_text(json.dumps({**content, **changes}))
    return path


def write_csv(path, rows, header=("text", "label")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_clinc_json_becomes_token_ids(tmp_path) -> None:
    splits = load_dataset("text", path=write_json(tmp_path / "data.json"))
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [10, 4, 6]
    assert splits.train.class_names == ("money", "weather")
    assert splits.train.inputs.shape == (10, 4)
    assert [splits.words[i] for i in splits.train.inputs[0]] == ["will", "it", "rain", "<pad>"]
    assert [splits.words[i] for i in splits.foreign["oos"].inputs[0]] == [
        "<unknown>",
        "<unknown>",
        "i",
        "<pad>",
    ]
    assert splits.foreign["oos"].labels.tolist() == [-1]


def test_csv_folder_and_single_csv_are_read(tmp_path) -> None:
    for part, n in (("train", 5), ("val", 2), ("test", 3)):
        write_csv(tmp_path / f"{part}.csv", pairs(n))
    write_csv(tmp_path / "oos.csv", [["who am I"]], header=["text"])
    splits = load_dataset("text", path=tmp_path, length=3)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [10, 4, 6]
    assert splits.train.inputs.shape[1] == 3
    assert len(splits.foreign["oos"]) == 1
    alone = load_dataset("text", path=tmp_path / "train.csv", validation=0.25)
    assert [len(part) for part in (alone.train, alone.validation, alone.test)] == [6, 2, 2]


def test_the_vocabulary_knows_only_training_words(tmp_path) -> None:
    rows = [[f"shared own{i}", "ab"[i % 2]] for i in range(40)]
    splits = load_dataset("text", path=write_csv(tmp_path / "one.csv", rows))
    assert len(splits.words) == 2 + 1 + len(splits.train)
    assert set(splits.test.inputs.flatten().tolist()) == {1, splits.words.index("shared")}
    assert (splits.train.inputs > 1).all()


def test_rare_words_fall_out_of_a_small_vocabulary_and_no_text_is_empty() -> None:
    vocabulary = Vocabulary.of(["a a a b b c"], max_words=2)
    assert vocabulary.words[2:] == ("a", "b")
    assert vocabulary.encode(["c a", "", "a b a b"], length=3).tolist() == [[1, 2, 0], [1, 0, 0], [2, 3, 2]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"train": [["a", ',
            "data.json: expected JSON with train, val and test, got a file that cannot be read",
        ),
        ("", "data.json: expected JSON with train, val and test, got an empty file"),
        ("[1]", "data.json: expected an object with train, val and test, got a list"),
        ('{"test": []}', "data.json: expected train, got test"),
        (
            '{"train": [["a", "x"], ["b"]]}',
            "data.json: train: expected .text, label. in every entry.*entry 1",
        ),
        ('{"train": {"a": "x"}}', "data.json: train: expected a list"),
        (
            '{"train": [["a","x"],["b","y"]], "test": [["c","z"]]}',
            "data.json: test: expected the classes.*'z'",
        ),
    ],
)
def test_bad_json_is_refused_in_one_sentence(tmp_path, content, message) -> None:
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(CalibrantError, match=f"^{message}"):
        load_dataset("text", path=tmp_path / "data.json")


def test_bad_csv_is_refused_in_one_sentence(tmp_path) -> None:
    with pytest.raises(FormatError, match=r"a.csv: expected a column label, got text, class"):
        load_dataset("text", path=write_csv(tmp_path / "a.csv", pairs(1), header=["text", "class"]))
    with pytest.raises(
        FormatError, match=r"b.csv: expected text and label in every line, got line 3 without"
    ):
        load_dataset("text", path=write_csv(tmp_path / "b.csv", [["x", "y"], ["x"]]))
    with pytest.raises(FormatError, match=r"c.csv: expected at least one line"):
        load_dataset("text", path=write_csv(tmp_path / "c.csv", []))
    (tmp_path / "d.csv").write_text('text,label\n"never closed,x\n')
    with pytest.raises(
        FormatError, match=r"d.csv: expected CSV with columns text and label, got a file that"
    ):
        load_dataset("text", path=tmp_path / "d.csv")
    with pytest.raises(FormatError, match=r"expected train.csv, got none"):
        load_dataset("text", path=tmp_path)
    (tmp_path / "e.txt").write_text("x")
    with pytest.raises(FormatError, match=r"e.txt: expected a .json or .csv file"):
        load_dataset("text", path=tmp_path / "e.txt")


def test_too_few_texts_to_divide_are_refused_by_name(tmp_path) -> None:
    with pytest.raises(InputError, match=r"^few.csv: share: expected one that holds out at least one of 2"):
        load_dataset("text", path=write_csv(tmp_path / "few.csv", pairs(1)))


class Letters:
    """Stands in for a tokenizer of transformers: a letter is a token, and 9 pads."""

    pad_token_id = 9

    @classmethod
    def from_pretrained(cls, model):
        if model != "letters":
            raise OSError(f"{model} is not a local folder\nand not a model")
        return cls()

    def __call__(self, texts, *, truncation, max_length, padding=None):
        assert truncation
        ids = [[ord(letter) for letter in text][:max_length] for text in texts]
        if padding == "max_length":
            ids = [row + [self.pad_token_id] * (max_length - len(row)) for row in ids]
        return {"input_ids": ids}


def test_a_model_name_brings_its_own_tokenizer(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=Letters))
    path = write_json(tmp_path / "data.json")
    splits = load_dataset("text", path=path, model="letters")
    assert splits.words is None
    assert splits.train.inputs.shape[1] == max(len(text) for text, _ in pairs(5))
    first = splits.train.inputs[0].tolist()
    assert first == [*map(ord, "will it rain"), *[9] * (len(first) - 12)]
    assert load_dataset("text", path=path, model="letters", length=4).test.inputs.shape[1] == 4
    with pytest.raises(
        InputError, match="model: expected a name on the Hugging Face Hub or a folder, got 'no'"
    ):
        load_dataset("text", path=path, model="no")


def test_without_transformers_the_sentence_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        MissingPackageError, match=r"expected the package transformers, got none.*'calibrant\[train\]'"
    ):
        load_dataset("text", path=write_json(tmp_path / "data.json"), model="bert")


@pytest.mark.parametrize("options", [{"length": 0}, {"max_words": 0}])
def test_lengths_are_positive(tmp_path, options) -> None:
    with pytest.raises(InputError, match=f"{next(iter(options))}: expected"):
        load_dataset("text", path=write_json(tmp_path / "data.json"), **options)


def test_texts_of_one_author_stay_on_one_side(tmp_path) -> None:
    rows = [(f"word{i} again", "ab"[i % 2], f"author {i // 5}") for i in range(100)]
    path = write_csv(tmp_path / "texts.csv", rows, ("text", "label", "unit"))
    splits = load_dataset("text", path=path or tmp_path / "texts.csv")
    authors = [set(part.units.tolist()) for part in (splits.train, splits.validation, splits.test)]
    assert sum(map(len, authors)) == len(set.union(*authors)) == 20
