"""Small files under the names that the pages use, made from the bundled predictions."""

import json
import shutil
from io import BytesIO

import fsspec
import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import nn

from calibrant.data import load_bundled, load_predictions, save_predictions
from calibrant.data.predictions import Predictions
from calibrant.papers.experiment import parse_experiment
from calibrant.papers.runner import run_experiment
from calibrant.posthoc import TemperatureScaling
from tests.docs.pages import ROOT

# Addresses and folders of other machines, and what takes their place in the folder of a test.
PLACES = {
    "s3://bucket": "memory://bucket",
    "/srv/model": ".",
    "/var/lib/node_exporter": "node_exporter",
}
BUNDLED = "src/calibrant/data/bundled"
DAYS = ("2026-01-30", "2026-01-31")


def _taken(name, rows):
    """Some rows of bundled predictions, with logits and labels only."""
    part = load_bundled(name).take(rows)
    return Predictions(logits=part.logits, labels=part.labels, class_names=part.class_names)


def _unlabelled(predictions):
    return Predictions(logits=predictions.logits, class_names=predictions.class_names)


def _two_classes(name, rows, names=("healthy", "ill")):
    """Airplanes and automobiles, under other names."""
    all_rows = load_bundled(name)
    part = all_rows.take((all_rows.labels < 2).nonzero()[:, 0][rows])
    return Predictions(logits=part.logits[:, :2], labels=part.labels, class_names=names)


def _few(name, *, seed):
    """Predictions of three classes. Their labels are drawn, so that a temperature is all that they need."""
    part = load_bundled(name)
    logits = part.logits[part.labels < 3][:150, :3].double()
    draw = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.softmax(logits / 3, dim=1), 1, generator=draw)[:, 0]
    return Predictions(logits=logits, labels=labels, class_names=part.class_names[:3])


def few_classes(folder):
    """Predictions to fit and to test, new ones, those of another model, and others under noise."""
    test, noisy = _few("cifar10_test", seed=1), _few("cifar10_test_noise", seed=1)
    files = {
        "val": _few("cifar10_val", seed=0),
        "test": test,
        "other": Predictions(logits=test.logits * 2, labels=test.labels, class_names=test.class_names),
        "new": _unlabelled(test),
        "noisy": noisy,
        "ood": _unlabelled(noisy),
        "preds": test,
    }
    for name, predictions in files.items():
        save_predictions(predictions, folder / f"{name}.npz")


def fitted(folder):
    """A calibrator, as ``calibrant calibrate --methods temperature --out calibrated`` saves it."""
    val = load_predictions(folder / "val.npz")
    calibrator = TemperatureScaling.fit(val.logits, val.labels)
    calibrator.class_names = val.class_names
    calibrator.class_frequencies = tuple((val.labels.bincount() / val.n).tolist())
    (folder / "calibrated").mkdir()
    calibrator.save(folder / "calibrated" / "calibrator.safetensors")


def two_classes(folder):
    """Predictions of two classes, healthy and ill; what the model costs if one acts on it."""
    test = _two_classes("cifar10_test", slice(600))
    files = {
        "val": _two_classes("cifar10_val", slice(900)),
        "test": test,
        "baseline": Predictions(logits=test.logits * 1.1, labels=test.labels, class_names=test.class_names),
        "new": _unlabelled(_two_classes("cifar10_test", slice(600, 1000))),
        "noisy": _unlabelled(_two_classes("cifar10_test_noise", slice(600, 1000))),
        "production": _unlabelled(_two_classes("cifar10_test", slice(1000, 1600))),
    }
    for name, predictions in files.items():
        save_predictions(predictions, folder / f"{name}.npz")


def cascade(folder):
    """Predictions of a cheap and a dear model for the same images, and for new ones."""
    for name, file in (("cheap", "cifar10_test_noise"), ("dear", "cifar10_test")):
        save_predictions(_taken(file, range(4000)), folder / f"{name}.npz")
        save_predictions(_unlabelled(_taken(file, range(4000, 4100))), folder / f"new_{name}.npz")


def costs(folder):
    """The table that the page prints with cat."""
    (folder / "costs.csv").write_text("true,wait,treat,ask a person\nhealthy,0,1,2\nill,20,0,2\n")


def days(folder):
    """A reference, and the predictions of later days, in several formats."""
    _empty_bucket()
    reference = _taken("cifar10_val", range(1500))
    for suffix in ("npz", "parquet", "csv"):
        save_predictions(reference, folder / f"reference.{suffix}")
    for number, day in enumerate(("monday", "tuesday", "wednesday")):
        save_predictions(
            _taken("cifar10_test", range(500 * number, 500 * number + 500)), folder / f"{day}.npz"
        )
    later = _taken("cifar10_test", range(1500, 1700))
    for path in ("predictions/1.parquet", "days/1/part-1.parquet", "days/2.csv"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        save_predictions(later, folder / path)
    (folder / "node_exporter").mkdir()
    _to_bucket(reference, "reference/1.parquet")
    _to_bucket(later, "predictions/1.parquet")


def answers_of_days(folder):
    """Five answers to each question, of a confidence of 0.8, before and since."""
    (folder / "answers").mkdir()
    for path, n in (("before.csv", 1500), ("answers/1.csv", 500)):
        rows = [f"0.8,{int(row // 5 % 5 > 0)},q{row // 5},{'eu' if row % 2 else 'us'}" for row in range(n)]
        (folder / path).write_text("\n".join(["confidence,correct,question_id,region", *rows, ""]))


def late_labels(folder):
    """A reference, requests without labels, and the labels of most of them."""
    save_predictions(_taken("cifar10_val", range(500)), folder / "before.parquet")
    later = _taken("cifar10_test", range(300))
    (folder / "requests").mkdir()
    (folder / "outcomes").mkdir()
    save_predictions(later.replaced(labels=None), folder / "requests" / "1.parquet")
    table = pq.read_table(folder / "requests" / "1.parquet")
    table = table.append_column("request_id", pa.array([f"r{row}" for row in range(300)]))
    pq.write_table(table, folder / "requests" / "1.parquet")
    rows = [f"r{row},{int(later.labels[row])}" for row in range(280)]
    (folder / "outcomes" / "1.csv").write_text("\n".join(["request_id,label", *rows, ""]))


def streams(folder):
    """Parquet files with columns of model versions and questions, in folders and in a bucket."""
    _empty_bucket()
    for part in range(2):
        predictions = _taken("cifar10_test", range(300 * part, 300 * part + 300))
        for path in (f"predictions/{part}.parquet", f"runs/{part}/part-{part}.parquet"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            save_predictions(predictions, folder / path)
            table = pq.read_table(folder / path)
            versions = pa.array([f"v{row % 2 + 1}" for row in range(table.num_rows)])
            table = table.append_column("model_version", versions)
            questions = pa.array([f"q{row % 100}" for row in range(table.num_rows)])
            pq.write_table(table.append_column("question_id", questions), folder / path)
        _to_bucket(predictions, f"predictions/day={DAYS[part]}/0.parquet")
    val = _taken("cifar10_val", range(400))
    save_predictions(val, folder / "huge.parquet")
    TemperatureScaling.fit(val.logits, val.labels).save(folder / "calibrator.safetensors")


def _empty_bucket():
    fsspec.filesystem("memory").store.clear()


def _to_bucket(predictions, path):
    target = BytesIO()
    columns = {
        "logits": pa.array(predictions.logits.tolist()),
        "labels": pa.array(predictions.labels.tolist()),
    }
    pq.write_table(pa.table(columns), target)
    with fsspec.open(f"memory://bucket/{path}", "wb") as file:
        file.write(target.getvalue())


def formats(folder):
    """The same samples in a folder of tables, in a table with other columns, and in logs."""
    for place in ("days", "logs"):
        (folder / place).mkdir()
        for part in range(2):
            save_predictions(_few("cifar10_test", seed=part), folder / place / f"{part}.csv")
    pairs = _two_classes("cifar10_test", slice(200), ("cat", "dog"))
    samples = zip(pairs.to_probs().tolist(), pairs.labels.tolist(), strict=True)
    lines = [f"{cat},{dog},{('cat', 'dog')[label]}" for (cat, dog), label in samples]
    (folder / "scores.csv").write_text("\n".join(("cat,dog,truth", *lines)))


def _answers(rng, n):
    """Answers that are right by how easy the question is, which three signals show with noise."""
    ease = rng.normal(size=n)
    for each in ease:
        law = bool(rng.random() < 0.3)
        yield {
            "stated": (0.8, 0.9, 0.95, 1.0)[int(np.digitize(each + rng.normal(), [-1.5, 0, 1.5]))],
            "logprob": float(1 / (1 + np.exp(-2 - each - rng.normal()))),
            "length": float(np.exp(5 - 0.5 * each + rng.normal())),
            "is_right": bool(rng.random() < 1 / (1 + np.exp(-1.5 * each + law))),
            "subject": "law" if law else "art",
        }


def answers(folder):
    """Marked answers of a black box, new ones, and a folder of Parquet files with both."""
    rng = np.random.default_rng(0)
    for name in ("answers", "new", "today"):
        rows = list(_answers(rng, 400))
        if name == "new":
            rows = [{key: value for key, value in row.items() if key != "is_right"} for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = list(_answers(rng, 300))
    columns = {"confidence": "stated", "correct": "is_right", "subject": "subject"}
    columns |= {f"signal_{name}": name for name in ("stated", "logprob", "length")}
    table = pa.table({name: [row[source] for row in rows] for name, source in columns.items()})
    (folder / "answers").mkdir()
    pq.write_table(table, folder / "answers" / "1.parquet")
    lines = [
        f"{row['stated']},{int(row['is_right'])},{row['subject']},{('en', 'fr')[place % 2]},{row['length']}"
        for place, row in enumerate(rows)
    ]
    (folder / "answers.csv").write_text("\n".join(("confidence,correct,subject,language,length", *lines)))


def questions(folder):
    """Several answers of each of three models to the same questions."""
    rng = np.random.default_rng(0)
    rows = ["model,question_id,subject,confidence,correct"]
    for model in ("alpha", "beta", "gamma"):
        for question, ease in enumerate(rng.normal(size=60)):
            for _ in range(3):
                stated = 1 / (1 + np.exp(-1 - ease - 0.3 * rng.normal()))
                rows.append(f"{model},q{question},s{question % 4},{stated:.4f},{int(rng.random() < stated)}")
    (folder / "answers.csv").write_text("\n".join(rows))


def scored(folder):
    """Risks from 1 to 10 with outcomes, new ones, grades from 0 to 10, and games with ties."""
    rng = np.random.default_rng(0)
    deciles = rng.integers(1, 11, size=600)
    back = rng.random(600) < 0.2 + 0.05 * deciles
    rows = [f"{decile},{int(each)}" for decile, each in zip(deciles, back, strict=True)]
    (folder / "risk.csv").write_text("\n".join(("decile,came_back", *rows[:400])))
    (folder / "new.csv").write_text("\n".join(("decile,came_back", *rows[400:])))
    (folder / "graded.csv").write_text("\n".join(("grade,came_back", *rows)))
    p = rng.random(300).round(3)
    results = np.where(rng.random(300) < 0.1, 0.5, (rng.random(300) < p).astype(float))
    games = [f"{each},{result:g}" for each, result in zip(p, results, strict=True)]
    (folder / "games.csv").write_text("\n".join(("p_home,result", *games)))


def judged(folder):
    """Scores of a judge for the answers of three models to the same prompts, 150 of each marked by people."""
    rng = np.random.default_rng(0)
    rows = ["model,prompt_id,judge,human"]
    for prompt, ease in enumerate(rng.normal(size=800)):
        for model, better in (("old", 0.0), ("new", 0.6), ("small", -0.9)):
            quality = better + ease + rng.normal()
            score = round(float(np.clip(7 + 1.5 * quality + rng.normal(), 1, 10)))
            good = "yes" if rng.random() < 1 / (1 + np.exp(-quality)) else "no"
            rows.append(f"{model},p{prompt},{score},{good if prompt < 150 and model != 'small' else ''}")
    (folder / "judged.csv").write_text("\n".join(rows))


def percent(folder):
    """Answers with a confidence in percent, some without one, and their subject in an object."""
    rng = np.random.default_rng(0)
    rows = list(_answers(rng, 200))
    lines = [
        {
            "stated": None if number % 20 == 0 else f"{100 * row['stated']:g} %",
            "is_right": row["is_right"],
            "metadata": {"subject": row["subject"]},
        }
        for number, row in enumerate(rows)
    ]
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, lines)))


def bundled(folder):
    """Some rows of the bundled files under their own names, and the folder of the figures."""
    (folder / BUNDLED).mkdir(parents=True)
    (folder / "docs" / "gallery").mkdir(parents=True)
    for name in ("cifar10_val", "cifar10_test", "cifar10_test_noise"):
        save_predictions(_taken(name, range(300)), folder / BUNDLED / f"{name}.npz")


def rows(folder):
    """Finished rows of benchmarks: those of the pages, and a small leaderboard."""
    (folder / "docs" / "results").mkdir(parents=True)
    finished = ROOT / "docs" / "results" / "rows"
    (folder / "docs" / "results" / "rows").symlink_to(finished)
    shutil.copytree(finished / "losses", folder / "bench" / "losses")
    shutil.copytree(finished / "llm", folder / "bench" / "llm")
    data = folder / "FOLDER"
    data.mkdir()
    for number in range(2):
        part = _taken("cifar10_val", range(500 * number, 500 * number + 500))
        save_predictions(part, data / f"{number}.npz")
    text = (
        'title = "Mine"\nworker = "arena_real"\n[table]\nrows = ["method"]\nmeasures = ["nll"]\n'
        '[quick]\nseeds = 1\n[quick.grid]\nsamples = [100]\n[quick.settings]\nmethods = ["platt"]\n'
    )
    list(run_experiment(parse_experiment("mine", text), folder / "bench" / "mine", data=data))
    (folder / "theirs").mkdir()
    shutil.copy(folder / "bench" / "mine" / "rows.jsonl", folder / "theirs")


def pictures(folder):
    """CIFAR-10 in small, the page's configuration with fewer epochs, and a loss and network of the user's."""
    (folder / "my_module.py").write_text(
        "from torch import nn\n\nclass MyLoss(nn.CrossEntropyLoss):\n    def __init__(self, alpha):\n"
        "        super().__init__(label_smoothing=alpha / 10)\n\n\n"
        "def make(n_classes, shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, n_classes))\n"
    )
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10)).state_dict(), folder / "weights.pt")
    for digit in range(10):
        (folder / "photos" / str(digit)).mkdir(parents=True)
        Image.new("L", (8, 8), 20 * digit).save(folder / "photos" / str(digit) / "one.png")
    rng = np.random.default_rng(0)
    (folder / "data" / "cifar10").mkdir(parents=True)
    for part in ("train", "test"):
        images = []
        for image in rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8):
            buffer = BytesIO()
            Image.fromarray(image).save(buffer, "PNG")
            images.append({"bytes": buffer.getvalue(), "path": None})
        table = pa.table({"img": images, "label": [row % 10 for row in range(40)]})
        pq.write_table(table, folder / "data" / "cifar10" / f"{part}-00000-of-00001.parquet")
    config = folder / "configs" / "seca" / "cifar10_resnet56.toml"
    config.parent.mkdir(parents=True)
    config.write_text(
        f'extends = "{ROOT / "configs" / "seca" / config.name}"\n[training]\nepochs = 1\n'
        "[data]\nvalidation = 0.5\n"
    )


def served(folder):
    """A classifier's graph and a calibrator."""
    graph = (
        '<ir_version: 8, opset_import: ["" : 13]>\n'
        "classifier (float[N,10] x) => (float[N,10] logits) { logits = Identity(x) }"
    )
    onnx.save(onnx.parser.parse_model(graph), folder / "model.onnx")
    val = _taken("cifar10_val", range(500))
    (folder / "calibrated").mkdir()
    TemperatureScaling.fit(val.logits, val.labels).save(folder / "calibrated" / "calibrator.safetensors")


def boxes(folder):
    """What an overconfident detector found in sixty images, and what is there, in COCO's files."""
    rng = np.random.default_rng(0)
    images, there, found = [], [], []
    for i in range(60):
        images.append({"id": i, "width": 300, "height": 200, "file_name": f"{i}.png"})
        for place in range(4):
            score, c = round(float(rng.uniform(0.3, 1)), 3), int(rng.integers(2))
            box = {"image_id": i, "category_id": c + 1, "bbox": [75 * place, 20, 60, 30 + 70 * c]}
            found.append({**box, "score": score})
            if rng.random() < score**2:
                there.append({**box, "id": len(there)})
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    truth = {"images": images, "annotations": there, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(truth), encoding="utf-8")
    (folder / "detections.json").write_text(json.dumps(found), encoding="utf-8")


def score_maps(folder):
    """Logits of small images with three classes, and the class of each pixel, to fit on and to measure on."""
    for seed, name in enumerate(("val", "test")):
        rng = np.random.default_rng(seed)
        labels = rng.integers(3, size=(12, 1, 4, 4)).repeat(4, axis=2).repeat(4, axis=3)[:, 0]
        logits = 2 * np.eye(3)[labels].transpose(0, 3, 1, 2) + rng.normal(size=(12, 3, 16, 16))
        np.save(folder / f"{name}_logits.npy", logits.astype(np.float32))
        np.save(folder / f"{name}_labels.npy", labels)


# What a page finds in its folder. Pages that find the same share a folder, in which a command runs once.
MODELS = (few_classes, days, answers)


def detector(folder):
    """Results of a detector and the ground truth of its images, in the format of COCO."""
    rng, found, things = np.random.default_rng(0), [], []
    for image in range(120):
        for place in range(4):
            score, label = round(float(rng.uniform(0.3, 1)), 3), int(rng.integers(2)) + 1
            box = [75 * place, 20, 60, 30 + 70 * label]
            found.append({"image_id": image, "category_id": label, "bbox": box, "score": score})
            if rng.random() < score:
                things.append({"id": len(things), "image_id": image, "category_id": label, "bbox": box})
    images = [{"id": image, "width": 300, "height": 200} for image in range(120)]
    categories = [{"id": 1, "name": "car"}, {"id": 2, "name": "bird"}]
    truth = {"images": images, "categories": categories, "annotations": things}
    (folder / "detections.json").write_text(json.dumps(found))
    (folder / "instances.json").write_text(json.dumps(truth))
    for part, name in enumerate(("val", "test")):
        some = [each for each in found if each["image_id"] % 2 == part]
        (folder / f"{name}.json").write_text(json.dumps(some))
        own = {
            "images": [each for each in images if each["id"] % 2 == part],
            "categories": categories,
            "annotations": [each for each in things if each["image_id"] % 2 == part],
        }
        (folder / f"instances_{name}.json").write_text(json.dumps(own))


WORLDS = {
    "README.md": (*MODELS, scored, judged, cascade, boxes, score_maps),
    "docs/benchmark.md": (rows,),
    "docs/black_boxes.md": (answers, judged),
    "docs/decisions.md": (two_classes, costs, fitted, cascade),
    "docs/formats.md": (few_classes, fitted, formats, percent),
    "docs/gallery.md": (bundled,),
    "docs/howto/calibrate.md": MODELS,
    "docs/howto/detectors.md": (detector,),
    "docs/howto/rare-classes.md": (two_classes, costs),
    "docs/howto/report.md": MODELS,
    "docs/howto/scores.md": (scored,),
    "docs/howto/pixels.md": (score_maps,),
    "docs/howto/serve.md": (served,),
    "docs/measures.md": MODELS,
    "docs/monitoring.md": (days, answers_of_days, late_labels),
    "docs/posthoc.md": MODELS,
    "docs/results/figures.md": (rows,),
    "docs/results/reproduces.md": (rows,),
    "docs/scale.md": (streams,),
    "docs/training.md": (pictures,),
    "docs/tutorials/dependent-rows.md": (questions,),
    "docs/tutorials/detector.md": (detector,),
    "docs/why-confidence-lies.md": MODELS,
}
# Commands of other pages that come before those of a page.
BEFORE = {"docs/howto/report.md": ("calibrant calibrate val.npz --test test.npz --out calibrated",)}
