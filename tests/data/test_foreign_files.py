"""Files as people have them: other delimiters, an index, names as labels, columns under other names."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant import Predictions, load_predictions
from calibrant.data import Columns, load_answers
from calibrant.data.predictions import join_predictions
from calibrant.errors import CalibrantError, InputError
from calibrant.files import without_nan

PROBS = [[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]]
LABELS = [0, 1, 1]

#: A file's name, its text and what is said about its columns; all hold the same predictions.
FILES = {
    "tabs": ("p.tsv", "probs_0\tprobs_1\tlabels\n.75\t.25\t0\n.5\t.5\t1\n.125\t.875\t1\n", {}),
    "tabs in csv": ("p.csv", "probs_0\tprobs_1\tlabels\n.75\t.25\t0\n.5\t.5\t1\n.125\t.875\t1\n", {}),
    "bars": ("p.csv", "probs_0|probs_1|labels\n.75|.25|0\n.5|.5|1\n.125|.875|1\n", {}),
    "semicolons": ("p.csv", "id;probs_0;probs_1;labels\na,b;.75;.25;0\nc,d;.5;.5;1\ne,f;.125;.875;1\n", {}),
    "decimal commas": ("p.csv", "probs_0;probs_1;labels\n0,75;0,25;0\n0,5;0,5;1\n,125;,875;1\n", {}),
    "decimal commas in quotes": (
        "p.csv",
        'probs_0,probs_1,labels\n"0,75","0,25","0,0"\n"0,5","0,5","1,0"\n"1,25e-1","0,875","1,0"\n',
        {},
    ),
    "index of pandas": ("p.csv", ",probs_0,probs_1,labels\n0,.75,.25,0\n1,.5,.5,1\n2,.125,.875,1\n", {}),
    "index of R": (
        "p.tsv",
        'probs_0\tprobs_1\tlabels\n"1"\t.75\t.25\t0\n"2"\t.5\t.5\t1\n"3"\t.125\t.875\t1\n',
        {},
    ),
    "delimiter at the end": ("p.csv", "probs_0,probs_1,labels\n.75,.25,0,\n.5,.5,1,\n.125,.875,1,\n", {}),
    "labels as floats": ("p.csv", "probs_0,probs_1,labels\n.75,.25,0.0\n.5,.5,1.0\n.125,.875,1.0\n", {}),
    "lists": (
        "p.csv",
        'probs,labels\n"[.75, 0.25]",0\n[0.5  0.5],1\n"[np.float64(0.125), np.float64(0.875)]",1\n',
        {},
    ),
    "percent": ("p.csv", "probs_0,probs_1,labels\n75,25,0\n50,50,1\n12.5,87.5,1\n", {"percent": True}),
    "percent with marks": (
        "p.csv",
        "probs_0,probs_1,labels\n75%,25 %,0\n50 %,50%,1\n12.5%,87.5%,1\n",
        {"percent": True},
    ),
    "names in the header": (
        "p.csv",
        "probs_cat,probs_dog,labels\n.75,.25,cat\n.5,.5,dog\n.125,.875,dog\n",
        {},
    ),
    "names that are given": (
        "p.csv",
        "probs_0,probs_1,labels\n.75,.25,cat\n.5,.5,dog\n.125,.875,dog\n",
        {"classes": ["cat", "dog"]},
    ),
    "classes from one": (
        "p.csv",
        "probs_1,probs_2,labels\n.75,.25,1\n.5,.5,2\n.125,.875,2\n",
        {"classes": ["1", "2"]},
    ),
    "other names": (
        "p.csv",
        "labels,p_cat,p_dog,y\n7,.75,.25,cat\n7,.5,.5,dog\n7,.125,.875,dog\n",
        {"probs": "p", "labels": "y"},
    ),
    "a list of columns": (
        "p.csv",
        "dog,cat,y,probs_0,probs_1\n.25,.75,cat,1,0\n.5,.5,dog,1,0\n.875,.125,dog,1,0\n",
        {"probs": ["cat", "dog"], "labels": "y"},
    ),
    "records of pandas": (
        "p.jsonl",
        '{"probs_cat":0.75,"probs_dog":0.25,"labels":"cat"}\n{"probs_cat":0.5,"probs_dog":0.5,"labels":"dog"}\n'
        '{"probs_cat":0.125,"probs_dog":0.875,"labels":"dog"}\n',
        {},
    ),
    "values within others": (
        "p.jsonl",
        '{"out":{"p":[0.75,0.25]},"y":"0"}\n{"out":{"p":[0.5,0.5]},"y":"1"}\n{"out":{"p":[0.125,0.875]},"y":"1"}\n',
        {"probs": "out.p", "labels": "y"},
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_files_as_people_have_them_are_read(case, tmp_path):
    name, text, said = FILES[case]
    (tmp_path / name).write_text(text)
    loaded = load_predictions(tmp_path / name, columns=Columns(**said))
    assert loaded.probs.tolist() == PROBS
    assert loaded.labels.tolist() == LABELS
    named = {"names that are given": ("cat", "dog"), "classes from one": ("1", "2")}
    assert loaded.class_names in (None, ("cat", "dog"), named.get(case))
    assert (loaded.class_names == ("cat", "dog")) == ("cat" in text)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_arrays_may_have_other_names_and_weights(tmp_path, suffix):
    path = tmp_path / f"p{suffix}"
    columns = {"p": PROBS, "probs": PROBS[::-1], "y": ["cat", "dog", "dog"], "w": [1.0, 0.0, 2.0]}
    if suffix == ".npz":
        np.savez(path, **{name: np.asarray(column) for name, column in columns.items()})
    else:
        pd.DataFrame(columns).astype({"y": "category"}).to_parquet(path)
    said = Columns(probs="p", labels="y", weights="w", classes=["cat", "dog"])
    loaded = load_predictions(path, columns=said)
    assert (loaded.probs.tolist(), loaded.labels.tolist()) == (PROBS, LABELS)
    assert loaded.weights.tolist() == [1, 0, 2]


def test_answers_have_weights_too(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("stated;correct;w\n0,9;yes;2\n;no;1\n0,5;no;3\n")
    said = Columns(confidence="stated", weights="w", missing="drop")
    loaded = load_predictions(path, columns=said)
    assert loaded.confidence.tolist() == [0.9, 0.5]
    assert loaded.weights.tolist() == [2, 3]


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_the_columns_of_a_data_frame_name_the_classes(frame):
    named = Predictions(probs=frame({"cat": [0.75, 0.5], "dog": [0.25, 0.5]}), labels=["dog", "cat"])
    assert (named.class_names, named.labels.tolist()) == (("cat", "dog"), [1, 0])
    counted = frame(np.array(PROBS))
    assert Predictions(probs=counted, labels=LABELS).class_names is None
    assert Predictions(probs=counted, class_names=["a", "b"]).class_names == ("a", "b")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"classes": ["dog", "cat"]}, r"classes: expected the order of the columns, cat, dog, got dog, cat"),
        (
            {"labels": "lable"},
            r"expected a column 'lable', got probs_cat, probs_dog, label; did you mean 'label'",
        ),
        (
            {"probs": ["probs_cat", "probs_cow"]},
            r"expected a column 'probs_cow', got .*did you mean 'probs_dog'",
        ),
    ],
)
def test_columns_that_are_not_there_are_named(said, message, tmp_path):
    (tmp_path / "p.csv").write_text("probs_cat,probs_dog,label\n0.5,0.5,cat\n")
    with pytest.raises(ValueError, match=message):
        load_predictions(tmp_path / "p.csv", columns=Columns(**{"labels": "label"} | said))


def test_one_form_of_predictions_is_named():
    with pytest.raises(InputError, match="^probs: expected either logits or probs, got both"):
        Columns(logits="z", probs="p")


def test_predictions_are_joined_with_all_that_stands_beside_them():
    part = Predictions(
        probs=PROBS, labels=LABELS, weights=[1, 2, 3], groups=["a", "b", "a"], class_names=["cat", "dog"]
    )
    joined = join_predictions({"monday": part, "tuesday": part.take([2, 0])})
    assert joined.probs.tolist() == [*PROBS, PROBS[2], PROBS[0]]
    assert joined.labels.tolist() == [*LABELS, 1, 0]
    assert joined.weights.tolist() == [1, 2, 3, 3, 1]
    assert joined.groups.values == ["a", "b", "a", "a", "a"]
    assert joined.class_names == ("cat", "dog")
    with pytest.raises(
        InputError, match=r"^b: expected probs of 2 classes .* as in a, got probs of 2 classes with"
    ):
        join_predictions({"a": part, "b": Predictions(probs=PROBS, labels=LABELS)})


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".npz"])
def test_rows_without_scores_or_labels_are_dropped_and_counted(tmp_path, suffix):
    path, nan = tmp_path / f"a{suffix}", float("nan")
    p = [0.1, nan, 0.3, 0.4, 0.5]
    y = [1.0, 0.0, nan, 1.0, 0.0]
    if suffix == ".npz":
        np.savez(path, probs=p, labels=y, weights=[1.0, 2, 3, 4, 5])
    else:
        names = ["dog", "cat", None, "dog", "cat"]
        rows = [
            {"probs_cat": 1 - a, "probs_dog": a, "labels": name, "weights": row + 1.0, "kind": f"k{row}"}
            for row, (a, name) in enumerate(zip(p, names, strict=True))
        ]
        if suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif suffix == ".jsonl":
            path.write_text("".join(json.dumps(without_nan(row)) + "\n" for row in rows))
        else:
            cells = [list(rows[0]), *(["" if x is None or x != x else x for x in r.values()] for r in rows)]
            path.write_text("".join(",".join(map(str, row)) + "\n" for row in cells))
    with pytest.raises(CalibrantError):
        load_predictions(path)
    drop = Columns(missing="drop", groups=None if suffix == ".npz" else "kind")
    found = load_predictions(path, columns=drop)
    assert found.metadata == {"dropped": "2", "dropped_because": "1 without probs, 1 without labels"}
    assert (found.labels.tolist(), found.weights.tolist()) == ([1, 1, 0], [1, 4, 5])
    np.testing.assert_allclose(found.probs[:, 1], [0.1, 0.4, 0.5])
    if suffix != ".npz":
        assert found.groups.values == ["k0", "k3", "k4"]
    answers = load_answers(path, columns=drop, need_labels=False)  # labels may be missing there
    assert (answers.kept.tolist(), answers.predictions.labels) == ([True, False, True, True, True], None)
    with pytest.raises(
        InputError, match="missing: expected 'refuse' or 'drop' for class scores, got 'group'"
    ):
        load_predictions(path, columns=Columns(missing="group"))


def test_classes_are_found_in_names_such_as_p_of_a_class(tmp_path):
    (tmp_path / "a.csv").write_text("P(<=50K),P(>50K),income\n0.7,0.3,<=50K\n0.2,0.8,>50K\n")
    both = Columns(probs=["P(<=50K)", "P(>50K)"], labels="income")
    found = load_predictions(tmp_path / "a.csv", columns=both)
    assert (found.class_names, found.labels.tolist()) == (("<=50K", ">50K"), [0, 1])
    (tmp_path / "b.csv").write_text("low pay,high pay,income\n0.7,0.3,<=50K\n0.2,0.8,>50K\n")
    other = Columns(probs=["low pay", "high pay"], labels="income")
    with pytest.raises(
        InputError, match=r"give other names of the classes, in the order .* with class_names="
    ):
        load_predictions(tmp_path / "b.csv", columns=other)
    named = replace(other, classes=["<=50K", ">50K"])
    assert load_predictions(tmp_path / "b.csv", columns=named).labels.tolist() == [0, 1]
