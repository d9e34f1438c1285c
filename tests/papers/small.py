"""A small experiment, whose jobs take no time."""

from calibrant.papers.experiment import Experiment, parse_experiment

TEXT = """
title = "Two post-hoc methods on digits"
claim = "Temperature scaling lowers the NLL."
worker = "posthoc"
[table]
rows = ["method"]
columns = ["source"]
measures = ["nll", "ece"]
only = { set = "test" }
[[paper]]
title = "SMART table 1, CIFAR-10, ResNet-50: ECE %"
where = { paper = "smart", table = "1", dataset = "CIFAR-10", model = "ResNet-50", measure = "ece" }
match = { method = "posthoc" }
[quick]
seeds = 2
[quick.grid]
source = ["digits"]
method = ["uncalibrated", "temperature", "smart"]
"""


def small_experiment() -> Experiment:
    return parse_experiment("small", TEXT)
