"""Saved calibrators with one thing changed: refused by name, or still a calibrator."""

import json

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from calibrant.errors import FormatError
from calibrant.posthoc import load_calibrator


def mutations(tensors):
    """Yield each tensor in turn, changed in each of several ways, and what was changed."""
    for name, tensor in tensors.items():
        wrong = {
            "negative": torch.full_like(tensor, -1) if tensor.dtype != torch.bool else ~tensor,
            "longer": torch.cat([tensor, tensor]) if tensor.ndim else tensor.repeat(2),
            "transposed": tensor[..., None],
            "empty": tensor.new_zeros(0),
            "complex": tensor.to(torch.complex64),
            "whole": tensor.to(torch.int32),
            "huge": tensor.double() * 1e300 if tensor.is_floating_point() else tensor.double(),
            "half": tensor.half() if tensor.is_floating_point() else tensor.to(torch.uint8),
        }
        if tensor.is_floating_point():
            wrong["nan"] = torch.full_like(tensor, torch.nan)
            wrong["one nan"] = tensor.flatten().index_fill(0, torch.tensor([0]), torch.nan).view(tensor.shape)
        for how, changed in wrong.items():
            yield name, how, tensors | {name: changed}
        yield name, "missing", {other: each for other, each in tensors.items() if other != name}


# Changes that no tensor allows. Others may be legal, or be noticed first by another tensor's shape.
REFUSED = ("complex", "whole", "nan", "one nan", "missing")


def check_mutations(calibrator, path, logits, features=None):
    """Change every tensor of a saved calibrator: it is refused by its name, or gives probabilities."""
    calibrator.save(path)
    with safe_open(path, framework="pt") as file:
        header = {key: text for key, text in file.metadata().items() if key != "digest"}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    for name, how, changed in mutations(tensors):
        save_file({key: each.contiguous() for key, each in changed.items()}, path, metadata=header)
        loaded = loaded_or_refused(path)
        if isinstance(loaded, str):
            assert name.split(".")[-1] in loaded or how not in REFUSED, (name, how, loaded)
        else:
            assert how not in REFUSED, (name, how)
            assert not loaded.predict_log_proba(logits, features).isnan().any(), (name, how)
    for option, part in options_of(json.loads(header["calibrator"])):
        for value in (None, -1, 0.5, "other", [], {}, 10**30):
            kept, part[option[-1]] = part[option[-1]], value
            described = json.dumps(option[0])
            part[option[-1]] = kept
            save_file(tensors, path, metadata=header | {"calibrator": described})
            loaded = loaded_or_refused(path)
            if not isinstance(loaded, str):
                assert not loaded.predict_log_proba(logits, features).isnan().any(), (option[-1], value)


def loaded_or_refused(path):
    """Return the calibrator of a file, or the sentence that refuses it."""
    try:
        return load_calibrator(path)
    except FormatError as error:
        refusal = str(error)
    assert refusal.startswith(f"{path.name}: ")
    return refusal


def options_of(root):
    """Yield each option of a description, with the description, and the table that holds it."""
    tables = [root]
    while tables:
        table = tables.pop()
        tables.extend(table["parts"].values())
        for option in table["options"]:
            yield (root, option), table["options"]
