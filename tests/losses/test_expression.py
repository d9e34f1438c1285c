"""Losses from text: what is written is what is made, and nothing else is evaluated."""

import pytest
import torch

from calibrant.errors import InputError
from calibrant.losses import CrossEntropyLoss, FLSDLoss, FocalLoss, MDCALoss, SelectiveRiskLoss
from calibrant.losses.expression import parse_loss
from tests.losses.batches import batch

MAKERS = {
    "cross_entropy": CrossEntropyLoss,
    "flsd": FLSDLoss,
    "focal": FocalLoss,
    "mdca": MDCALoss,
    "selective_risk": SelectiveRiskLoss,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("focal", "FocalLoss(gamma=3.0)"),
        ("focal()", "FocalLoss(gamma=3.0)"),
        ("  focal(gamma=2)\n", "FocalLoss(gamma=2)"),
        ("focal(gamma=3) + 0.5 * mdca", "FocalLoss(gamma=3) + 0.5 * MDCALoss()"),
        ("focal + mdca * 2", "FocalLoss(gamma=3.0) + 2 * MDCALoss()"),
        ("0.5*(focal+mdca)", "0.5 * FocalLoss(gamma=3.0) + 0.5 * MDCALoss()"),
        ("cross_entropy + mdca + focal", "CrossEntropyLoss() + MDCALoss() + FocalLoss(gamma=3.0)"),
        ("flsd(gammas=(4, 2), threshold=0.3)", "FLSDLoss(gammas=(4, 2), threshold=0.3)"),
    ],
)
def test_text_reads_as_the_loss_it_makes(text, expected):
    assert repr(parse_loss(text, MAKERS)) == expected


def test_the_value_is_that_of_the_sum_in_code():
    logits, labels = batch()
    written = parse_loss("focal(gamma=1.5) + 2 * mdca", MAKERS)
    torch.testing.assert_close(
        written(logits, labels), (FocalLoss(gamma=1.5) + 2 * MDCALoss())(logits, labels)
    )


def test_words_and_negative_numbers_are_options_too():
    loss = parse_loss("selective_risk(score='msp', ignore_index=-1)", MAKERS)
    assert (loss.score, loss.ignore_index) == ("msp", -1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "focal +",
        "focal - mdca",
        "focal / 2",
        "focal * mdca",
        "2",
        "-1 * focal",
        "focal(3)",
        "focal(gamma=mdca)",
        "focal(gamma={[]: 1})",
        "focal(**{'gamma': 2})",
        "focal.forward",
        "__import__('os').getcwd()",
        "(lambda: focal)()",
        "[focal]",
        "'focal'",
        "True * focal",
        "focal\nmdca",
        "\0",
        "(" * 500 + "focal" + ")" * 500,
    ],
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(InputError, match=r"^loss: expected losses with weights such as 'focal\(gamma=3\)"):
        parse_loss(text, MAKERS)


def test_a_misspelt_name_is_told_the_nearest():
    with pytest.raises(InputError, match=r"got 'focl'; did you mean 'focal'\?$"):
        parse_loss("focl + mdca", MAKERS)


def test_a_name_like_no_other_is_told_all():
    with pytest.raises(InputError, match=r"got 'zzz'; known are cross_entropy, flsd, focal, mdca"):
        parse_loss("zzz", MAKERS)


def test_an_option_that_a_loss_does_not_take_is_named():
    with pytest.raises(InputError, match=r"^loss: mdca does not take these options \(.*'gamma'"):
        parse_loss("mdca(gamma=2)", MAKERS)


def test_an_option_out_of_range_is_refused_by_the_loss_itself():
    with pytest.raises(InputError, match=r"^coverage: expected"):
        parse_loss("selective_risk(coverage=2)", MAKERS)
