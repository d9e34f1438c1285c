"""What every loss of the catalogue promises, checked once for all.

Each loss is checked as the bare module; a term also by its recipe, beside the loss that it is added to, and a
variant with a paper's settings by its name.
Each has lived through one epoch, so that those with a memory remember something.
"""

import inspect

import pytest
import torch

from calibrant import losses
from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss
from calibrant.losses.names import LOSSES, make_loss
from tests.conftest import at_length
from tests.contracts import Contract
from tests.losses.batches import batch

N, K = 12, 5
BARE = [name for name in LOSSES if hasattr(losses, f"{name}_loss")]  # the others are variants
CASES = [(name, "bare") for name in BARE] + [
    (name, "recipe") for name in LOSSES if "+" in LOSSES[name].recipe or name not in BARE
]
PER_SAMPLE = [name for name in BARE if issubclass(LOSSES[name].module, SampleLoss)]
OF_LOGITS = [name for name in BARE if LOSSES[name].reads == "logits"]
OF_EMBEDDINGS = [name for name in BARE if LOSSES[name].reads == "embeddings"]
# Correctness ranking has a history of samples, not of single positions.
DENSE = [name for name in OF_LOGITS if name != "crl"]
SOFT = ["cross_entropy", "label_smoothing", "focal", "inverse_focal", "brier", "logit_norm"]
SOFT += ["adafocal", "calfocal", "seca"]
# Constants to the gradient by design: SECA's class means, the counts and the threshold of selective risk,
# the weight of BSCE-GRA. Their own tests compare the gradient with the papers' formulas.
CONSTANTS = {"seca", "selective_risk", "bsce_gra"}
# Of masked classes: these count classes or measure logits; to the others they are very improbable ones.
COUNTS_CLASSES = ["label_smoothing", "ols", "logit_norm", "mbls", "seca"]
OF_DIRECTIONS = {"logit_norm", *OF_EMBEDDINGS}
# Forms that are not the default.
VARIANTS = [
    ("focal", {"gamma": 0.5}),
    ("focal", {"gamma": 0.0}),
    ("label_smoothing", {"smoothing": 1.0}),
    ("ols", {"hard": 0.0}),
    ("dual_focal", {"gamma": 0.5}),
    ("dual_focal", {"rival": "strongest"}),
    ("dual_focal", {"rival": "dropped"}),
    ("bsce_gra", {"gamma": 0.5, "norm": 1.0}),
    ("mbls", {"margin": 0.0}),
    ("mmce", {"weighted": True}),
    ("mmce", {"width": 0.002}),
    ("kde", {"mode": "canonical", "p": 2.0}),
    ("kde", {"p": 1.5, "bandwidth": 1e-4}),
    ("soft_ece", {"n_bins": 1}),
    ("charbonnier", {"lam": 2000.0}),
    ("calfocal", {"case": "sample"}),
    ("calfocal", {"lam": 1000.0}),
    ("adafocal", {"gamma": -1.0}),
    ("selective_risk", {"score": "msp", "coverage": 1.0, "weight_gradient": 1.0}),
    ("selective_risk", {"score": "softmax_margin", "coverage": 0.01, "nu": 1e-4, "weight_gradient": 1.0}),
    ("selective_risk", {"weight_gradient": 0.0}),
    ("selective_risk", {"raw_scale": True}),
    ("selective_risk", {"warmup": 5}),
    ("aurc", {"score": "softmax_margin"}),
    ("refinement", {"normalize": False}),
    ("supervised_contrastive", {"temperature": 0.01}),
]


def cases_of(names):
    return [(name, form) for name, form in CASES if name in names]


each = pytest.mark.parametrize(("name", "form"), CASES)
contract = Contract()


@each
def test_a_loss_keeps_every_promise(name, form, subtests):
    contract.check(subtests, name, form)


def made(name, form="bare", **options):
    """A loss after one epoch of training and a validation set on which the model is overconfident."""
    sizes = {"n_classes": K, "n_samples": 200}
    if form == "recipe":
        loss = make_loss(name, **sizes)
    else:
        loss = LOSSES[name].module(**{size: sizes[size] for size in LOSSES[name].sizes}, **options)
    logits, labels = batch(N, K, seed=1)
    call(loss, logits.requires_grad_(), labels)
    loss.update(*batch(200, K, seed=2))
    return loss


def call(loss, logits, labels):
    extra = {"indices": torch.arange(len(labels))} if "indices" in loss.needs else {}
    return loss(logits, labels, **extra)


def value_and_gradient(loss, logits, labels):
    leaf = logits.detach().clone().requires_grad_()
    value = call(loss, leaf, labels)
    value.sum().backward()
    return value.detach(), leaf.grad


def assert_finite(loss, logits, labels):
    value, gradient = value_and_gradient(loss, logits, labels)
    assert torch.isfinite(value).all()
    assert torch.isfinite(gradient).all()
    return value, gradient


@contract.promise
def it_takes_logits_and_labels_and_returns_one_number(name, form):
    value, gradient = assert_finite(made(name, form), *batch(N, K))
    assert value.shape == ()
    assert gradient.shape == (N, K)


def masked_batch():
    """A batch in which two classes are masked everywhere and others in some rows; one row has one class."""
    logits, labels = batch(N, K)
    labels %= K - 2
    masked = torch.rand(N, K, generator=torch.Generator().manual_seed(4)) < 0.3
    masked[:, K - 2 :] = masked[0] = True
    masked[torch.arange(N), labels] = False
    return logits, labels, masked


@pytest.mark.parametrize(
    ("name", "options"), [(name, {}) for name in OF_LOGITS] + [v for v in VARIANTS if v[0] in OF_LOGITS]
)
def test_masked_classes_cost_nothing_and_get_no_gradient(name, options):
    logits, labels, masked = masked_batch()
    loss = made(name, **options)
    value, gradient = assert_finite(loss, logits.masked_fill(masked, -torch.inf), labels)
    assert bool((gradient[masked] == 0).all())
    if name in COUNTS_CLASSES:
        return
    improbable = value_and_gradient(loss, logits.masked_fill(masked, -1e4), labels)
    torch.testing.assert_close((value, gradient), improbable)


@pytest.mark.parametrize("name", COUNTS_CLASSES)
def test_classes_that_are_masked_everywhere_are_as_if_left_out(name):
    logits, labels, _ = masked_batch()
    sizes = dict.fromkeys(LOSSES[name].sizes, K)
    value, gradient = value_and_gradient(
        LOSSES[name].module(**sizes), logits.index_fill(1, torch.arange(K - 2, K), -torch.inf), labels
    )
    sizes = dict.fromkeys(LOSSES[name].sizes, K - 2)
    without = value_and_gradient(LOSSES[name].module(**sizes), logits[:, : K - 2], labels)
    torch.testing.assert_close((value, gradient[:, : K - 2]), without)


@pytest.mark.parametrize("name", SOFT)
def test_soft_labels_without_a_share_for_masked_classes_have_a_finite_loss(name):
    logits, _, masked = masked_batch()
    soft = torch.softmax(logits.flip(0).masked_fill(masked, -torch.inf), dim=1)
    _, gradient = assert_finite(made(name), logits.masked_fill(masked, -torch.inf), soft)
    assert bool((gradient[masked] == 0).all())


@pytest.mark.parametrize("name", BARE)
def test_the_function_beside_the_module_has_its_options_and_shows_their_meaning(name):
    function = getattr(losses, f"{name}_loss")
    options = inspect.signature(function).parameters
    kinds = [option.kind for option in options.values()]
    assert kinds[:2] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 2
    assert set(kinds[2:]) == {inspect.Parameter.KEYWORD_ONLY}
    described = inspect.getdoc(function).partition("Args:")[2]
    assert all(f"{option}: " in described for option in options)


@pytest.mark.parametrize("name", BARE)
def test_the_module_and_the_function_have_the_same_defaults(name):
    of_function = inspect.signature(getattr(losses, f"{name}_loss")).parameters
    of_module = inspect.signature(LOSSES[name].module).parameters
    for option in of_function.keys() & of_module.keys():
        assert of_module[option].default == of_function[option].default


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_values_per_sample_have_the_shape_of_the_labels_and_add_up_to_the_other_reductions(name):
    logits, labels = batch(N, K)
    labels[3] = -100
    each_sample = call(made(name, reduction="none"), logits, labels)
    assert each_sample.shape == labels.shape
    assert each_sample[3] == 0
    torch.testing.assert_close(each_sample.sum(), call(made(name, reduction="sum"), logits, labels))
    torch.testing.assert_close(each_sample.sum() / (N - 1), call(made(name), logits, labels))


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_an_unknown_reduction_is_refused(name):
    with pytest.raises(InputError, match="^reduction: expected 'mean', 'sum' or 'none', got 'average'$"):
        made(name, reduction="average")


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_class_weights_that_are_equal_change_nothing_and_weight_0_leaves_a_class_out(name):
    logits, labels = batch(N, K)
    equal = made(name, weight=torch.full((K,), 3.0))
    torch.testing.assert_close(call(equal, logits, labels), call(made(name), logits, labels))
    without = torch.ones(K)
    without[int(labels[0])] = 0
    _, gradient = value_and_gradient(made(name, weight=without, reduction="none"), logits, labels)
    if name != "label_smoothing":  # torch weighs every class's share of the smoothed label
        assert torch.equal(gradient[labels == labels[0]], torch.zeros_like(gradient[labels == labels[0]]))
    assert gradient[labels != labels[0]].abs().sum() > 0


@pytest.mark.parametrize("name", PER_SAMPLE)
@pytest.mark.parametrize("shape", [(K - 1,), (K + 1,), (1, K)])
def test_class_weights_of_the_wrong_shape_are_refused(name, shape):
    with pytest.raises(InputError, match="^weight: expected one number per class"):
        made(name, weight=torch.ones(shape))


@contract.promise
def large_logits_have_finite_values_and_gradients_right_or_wrong(name, form):
    for size in (1e2, 1e4):
        for dtype in (torch.float32, torch.float64):
            logits = torch.full((N, K), -size, dtype=dtype)
            labels = torch.arange(N) % K
            logits[torch.arange(N), (labels + torch.arange(N) % 2) % K] = size  # every other one is wrong
            assert_finite(made(name, form), logits, labels)
            assert_finite(made(name, form), logits[::2], labels[::2])  # all right
            assert_finite(made(name, form), logits[1::2], labels[1::2])  # all wrong


@contract.promise
def probabilities_that_round_to_0_or_1_have_finite_values_and_gradients(name, form):
    for dtype in (torch.float32, torch.float64):
        for gap in (15.0, 17.0, 37.0, 90.0, 104.0, 750.0):
            logits = torch.zeros(N, K, dtype=dtype)
            logits[:, 0] = gap
            assert_finite(made(name, form), logits, torch.arange(N) % K)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_forms_stand_the_hard_cases_too(name, options, dtype):
    loss = made(name, **options)
    labels = torch.arange(N) % K
    for size in (0.0, 1.0, 17.0, 37.0, 104.0, 1e4):
        sure = torch.full((N, K), -size, dtype=dtype)
        sure[torch.arange(N), (labels + torch.arange(N) % 2) % K] = size
        for z, y in (
            (sure, labels),
            (sure[::2], labels[::2]),
            (sure[1::2], labels[1::2]),
            (sure[:1], labels[:1]),
        ):
            assert_finite(loss, z, y)
        value, gradient = assert_finite(loss, sure, torch.full_like(labels, -100))
        assert value == 0
        assert gradient.abs().sum() == 0


@pytest.mark.parametrize(("name", "options"), [case for case in VARIANTS if case[0] not in CONSTANTS])
def test_the_gradient_of_other_forms_is_that_of_the_value_too(name, options):
    loss = made(name, **options).eval()
    logits, labels = batch(6, K, spread=1.0, seed=4)
    assert torch.autograd.gradcheck(lambda z: call(loss, z, labels), logits.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda z: call(loss, z, labels), logits.requires_grad_())


@contract.promise
def equal_logits_have_finite_values_and_gradients(name, form):
    assert_finite(made(name, form), torch.zeros(N, K), torch.arange(N) % K)


@contract.promise
def a_batch_of_one_is_enough(name, form):
    logits, labels = batch(1, K)
    assert_finite(made(name, form), logits, labels)


@contract.promise
def a_batch_of_one_class_only_is_enough(name, form):
    logits, labels = batch(N, K)
    assert_finite(made(name, form), logits, torch.full_like(labels, 2))


BINARY = [
    case for case in cases_of([n for n in LOSSES if LOSSES[n].reads == "logits"]) if case[0] != "logit_norm"
]


@pytest.mark.parametrize(("name", "form"), BINARY)
def test_one_logit_per_sample_is_two_classes_of_which_the_first_has_logit_0(name, form):
    sizes = {"n_classes": 2, "n_samples": N}
    own = {size: sizes[size] for size in LOSSES[name].sizes}
    loss = make_loss(name, **sizes) if form == "recipe" else LOSSES[name].make(**own)
    z, y = batch(N, 1)[0].squeeze(1), torch.arange(N) % 3 // 2
    y[3] = -100
    call(loss, z.clone().requires_grad_(), y)
    loss.update(z, y)  # those with a memory learn from one logit too
    loss.eval()
    expected, both = value_and_gradient(loss, torch.stack([torch.zeros_like(z), z], dim=1), y)
    for logits, labels in (
        (z, y),
        (z, y.double()),
        (z[:, None], y[:, None]),
        (z[:, None], y[:, None].float()),
        (z[:, None], y.int()),
    ):
        value, gradient = value_and_gradient(loss, logits, labels)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradient.flatten(), both[:, 1])
    kept = y >= 0
    truth = value_and_gradient(loss, z, (y > 0) & kept)  # truth values cannot be ignored
    torch.testing.assert_close(truth[0], value_and_gradient(loss, z, (y > 0).long())[0])


def test_cross_entropy_of_one_logit_is_that_of_torch_dense_or_not():
    z, y = batch(24, 1)[0].view(2, 1, 3, 4), (torch.arange(24) % 3 == 0).view(2, 1, 3, 4)
    expected = torch.nn.functional.binary_cross_entropy_with_logits
    torch.testing.assert_close(losses.cross_entropy_loss(z, y), expected(z, y.double()))
    flat = losses.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]), reduction="sum")(z.flatten(), y.flatten())
    weighted = expected(z, y.double(), pos_weight=torch.tensor(3.0), reduction="sum")
    torch.testing.assert_close(flat, weighted)


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_logit_has_labels_0_and_1_and_a_direction_needs_two(shape):
    z = torch.zeros(shape)
    with pytest.raises(InputError, match="^labels: expected 0 or 1 beside one logit per sample, got 0.3; "):
        losses.FocalLoss()(z, torch.tensor([0.0, 1.0, 0.3]))
    with pytest.raises(InputError, match="^labels: expected classes from 0 to 1 .*, got 2"):
        losses.FocalLoss()(z, torch.tensor([0, 1, 2]))
    with pytest.raises(InputError, match="^logits: expected one score for each of two or more classes"):
        losses.LogitNormLoss()(z, torch.tensor([0, 1, 1]))


@contract.promise
def a_batch_without_samples_or_with_ignored_ones_alone_is_0_and_has_no_gradient(name, form):
    loss = made(name, form)
    logits, labels = batch(N, K)
    for z, y in ((logits, torch.full_like(labels, -100)), (logits[:0], labels[:0])):
        value, gradient = value_and_gradient(loss, z, y)
        assert value == 0
        assert torch.equal(gradient, torch.zeros_like(z))


@contract.promise
def ignored_samples_count_for_nothing_whatever_their_logits(name, form):
    loss = made(name, form).eval()
    logits, labels = batch(N, K)
    logits = torch.cat([torch.full((2, K), 1e4, dtype=logits.dtype), logits])
    logits[0, 1] = torch.nan
    marked = torch.cat([torch.full((2,), -100), labels])
    extra = {"indices": torch.cat([torch.tensor([0, 0]), torch.arange(N)])} if loss.needs else {}
    leaf = logits.requires_grad_()
    value = loss(leaf, marked, **extra)
    value.backward()
    expected, gradient = value_and_gradient(loss, logits[2:], labels)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(leaf.grad[2:], gradient)
    assert torch.equal(leaf.grad[1], torch.zeros(K, dtype=logits.dtype))


@contract.promise
def a_logit_that_is_not_a_number_is_never_hidden(name, form):
    logits, labels = batch(N, K)
    logits[3, 2] = torch.nan
    assert torch.isnan(call(made(name, form), logits, labels))


@contract.promise
def half_precision_logits_are_computed_in_single_precision(name, form):
    for dtype in (torch.float16, torch.bfloat16):
        logits, labels = batch(N, K)
        loss = made(name, form).eval()
        value, gradient = assert_finite(loss, logits.to(dtype), labels)
        assert value.dtype == torch.float32
        assert gradient.dtype == dtype
        expected, its_gradient = value_and_gradient(loss, logits.to(dtype).float(), labels)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradient.float(), its_gradient, rtol=1e-2, atol=1e-4)


@contract.promise
def autocast_changes_nothing_about_the_loss_itself(name, form):
    for dtype in (torch.float32, torch.bfloat16):
        logits, labels = batch(N, K)
        loss = made(name, form).eval()
        expected, its_gradient = value_and_gradient(loss, logits.to(dtype).float(), labels)
        with torch.autocast("cpu", torch.bfloat16):
            leaf = logits.to(dtype).requires_grad_()
            value = call(loss, leaf, labels)
        value.backward()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(leaf.grad.float(), its_gradient, rtol=1e-2, atol=1e-4)


@contract.promise(only=lambda name, _: name in DENSE)
def dense_predictions_are_those_of_their_positions(name, form):
    loss = made(name, form).eval()
    logits, labels = batch(2 * 3 * 4, K)
    labels[5] = -100
    dense = logits.view(2, 3, 4, K).movedim(-1, 1)
    value, gradient = value_and_gradient(loss, dense, labels.view(2, 3, 4))
    expected, its_gradient = value_and_gradient(loss, logits, labels)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient.movedim(1, -1).reshape(-1, K), its_gradient)


@pytest.mark.parametrize("name", [name for name in PER_SAMPLE if name in DENSE])
def test_dense_values_per_position_have_the_shape_of_the_labels(name):
    logits, labels = batch(2 * 3 * 4, K)
    dense = logits.view(2, 3, 4, K).movedim(-1, 1)
    loss = made(name, reduction="none", weight=torch.arange(1.0, K + 1)).eval()
    torch.testing.assert_close(loss(dense, labels.view(2, 3, 4)), call(loss, logits, labels).view(2, 3, 4))


@pytest.mark.parametrize("name", OF_EMBEDDINGS)
def test_views_of_a_sample_are_samples_of_its_class(name):
    embeddings, labels = batch(N, K)
    pairs = embeddings.view(N // 2, 2, K)
    torch.testing.assert_close(
        made(name)(pairs, labels[::2]), made(name)(embeddings, labels[::2].repeat_interleave(2))
    )


@contract.promise(only=lambda name, _: name in SOFT)
def soft_labels_that_are_certain_are_the_labels_and_others_are_finite(name, form):
    logits, labels = batch(N, K)
    loss = made(name, form)
    certain = torch.nn.functional.one_hot(labels, K).to(logits.dtype)
    torch.testing.assert_close(call(loss, logits, certain), call(loss, logits, labels))
    unsure = torch.softmax(batch(N, K, seed=3)[0], dim=1)
    for size in (0.0, 1.0, 1e4):
        assert_finite(loss, size * logits, unsure)
        assert_finite(loss, (size * logits).float(), unsure.float())


@contract.promise(only=lambda name, _: name in set(BARE) - set(SOFT))
def soft_labels_without_a_meaning_are_refused_in_one_sentence(name, form):
    logits, _ = batch(N, K)
    with pytest.raises(InputError, match=r"^labels: expected [^\n]*$"):
        call(made(name, form), logits, torch.softmax(logits, dim=1))


@pytest.mark.parametrize("name", OF_LOGITS)
@pytest.mark.parametrize("wrong", [-1, K, 1000])
def test_labels_out_of_range_are_refused_by_value(name, wrong):
    logits, labels = batch(N, K)
    labels[4] = wrong
    with pytest.raises(InputError, match=rf"^labels: expected classes from 0 to {K - 1} .*, got {wrong}$"):
        call(made(name), logits, labels)


@contract.promise
def labels_of_another_shape_are_refused(name, form):
    logits, labels = batch(N, K)
    loss = made(name, form)
    for wrong in (labels[:-1], labels[:, None], labels[0]):
        extra = {"indices": torch.arange(N)} if loss.needs else {}
        with pytest.raises(InputError, match=r"^(labels|indices): expected"):
            loss(logits, wrong, **extra)


@contract.promise
def labels_of_another_type_are_refused(name, form):
    for dtype in (torch.float32, torch.int32, torch.bool):
        logits, labels = batch(N, K)
        with pytest.raises(InputError, match=f"^labels: expected integer classes .*, got {dtype}"):
            call(made(name, form), logits, labels.to(dtype))


@contract.promise
def logits_that_are_no_scores_are_refused(name, form):
    logits, labels = batch(N, K)
    for z, y in ((logits[:, 0], labels), (logits.long(), labels), (logits[0], torch.rand(K))):
        with pytest.raises(InputError, match=r"^(logits|embeddings|labels): expected"):
            call(made(name, form), z, y)


@pytest.mark.parametrize("name", OF_LOGITS)
def test_logits_of_no_class_are_refused(name):
    with pytest.raises(InputError, match=r"^logits: expected .* with at least one class, got"):
        call(made(name), torch.zeros(N, 0), torch.zeros(N).long())


@contract.promise(only=lambda name, _: name in set(BARE) - CONSTANTS)
def the_gradient_is_that_of_the_value(name, form):
    loss = made(name, form).eval()
    logits, labels = batch(6, K, spread=1.0, seed=4)
    labels[1] = -100
    assert torch.autograd.gradcheck(lambda z: call(loss, z, labels), logits.requires_grad_())


@contract.promise(only=lambda name, _: name in set(BARE) - CONSTANTS)
def the_second_derivative_is_that_of_the_value(name, form):
    loss = made(name, form).eval()
    logits, labels = batch(6, K, spread=1.0, seed=4)
    labels[1] = -100
    assert torch.autograd.gradgradcheck(lambda z: call(loss, z, labels), logits.requires_grad_())


@contract.promise
def second_order_gradients_are_finite(name, form):
    loss = made(name, form)
    logits, labels = batch(N, K)
    # A row of zeros has no direction.
    for spread in (1.0, 1e4) if name in OF_DIRECTIONS else (0.0, 1.0, 1e4):
        leaf = (spread * logits).float().requires_grad_()
        (gradient,) = torch.autograd.grad(call(loss, leaf, labels), leaf, create_graph=True)
        if gradient.requires_grad:
            (second,) = torch.autograd.grad(gradient.square().sum(), leaf, allow_unused=True)
            assert second is None or torch.isfinite(second).all()


@contract.promise
def the_same_batch_has_the_same_value_and_gradient_bit_for_bit(name, form):
    loss = made(name, form)
    once, again = (value_and_gradient(loss, *batch(50, K)) for _ in range(2))
    assert torch.equal(once[0], again[0])
    assert torch.equal(once[1], again[1])


@contract.promise
def inputs_are_left_as_they_are(name, form):
    logits, labels = batch(N, K)
    value_and_gradient(made(name, form), logits, labels)
    torch.testing.assert_close((logits, labels), batch(N, K), rtol=0, atol=0)


@contract.promise
def without_a_gradient_the_value_is_the_same_and_nothing_is_learned(name, form):
    loss = made(name, form)
    logits, labels = batch(N, K)
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    with torch.no_grad():
        value = call(loss, logits, labels)
    assert not value.requires_grad
    for key, kept in loss.state_dict().items():
        assert torch.equal(kept, before[key])
    torch.testing.assert_close(value, call(loss, logits.requires_grad_(), labels).detach())


@each
def test_the_state_survives_a_file_and_gives_the_same_loss_and_history(name, form, tmp_path):
    from safetensors.torch import load_file, save_file

    loss = made(name, form)
    state = loss.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    save_file(state, tmp_path / "loss.safetensors")
    sizes = {"n_classes": K, "n_samples": 200}
    fresh = (
        make_loss(name, **sizes)
        if form == "recipe"
        else LOSSES[name].module(**{size: sizes[size] for size in LOSSES[name].sizes})
    )
    fresh.load_state_dict(load_file(tmp_path / "loss.safetensors"))
    assert fresh.history == loss.history
    torch.testing.assert_close(call(fresh, *batch(N, K)), call(loss, *batch(N, K)), rtol=0, atol=0)


@contract.promise
def it_prints_what_it_is_on_one_line(name, form):
    text = repr(made(name, form))
    assert LOSSES[name].module.__name__ in text
    assert "\n" not in text


COMPILED = [(name, {}) for name in BARE] + [
    ("kde", {"mode": "canonical"}),
    ("mmce", {"weighted": True}),
    ("seca", {"accumulate": 3}),
    ("selective_risk", {"warmup": 2, "score": "msp"}),
    ("selective_risk", {"weight_gradient": 0.0}),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
@pytest.mark.parametrize(("name", "options"), COMPILED)
# Without code generation: what is ours is that the graph can be traced, forwards and, at length, back.
@pytest.mark.parametrize("backend", at_length(["eager", "aot_eager"], now=["eager"]))
def test_compiled_it_is_one_graph_with_the_same_value_gradient_and_memory_in_every_epoch(
    name, options, backend
):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    loss, plain = made(name, **options), made(name, **options)
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    logits, labels, masked = masked_batch()
    some_ignored = torch.where(torch.arange(N) % 4 == 1, -100, labels)
    batches = [(logits, labels), (logits, some_ignored), (-logits, torch.full_like(labels, -100))]
    if LOSSES[name].reads == "logits":
        batches.append((logits.masked_fill(masked, -torch.inf), labels))
    for _ in range(4):
        for z, y in batches:
            torch.testing.assert_close(value_and_gradient(compiled, z, y), value_and_gradient(plain, z, y))
        for each_loss in (loss, plain):
            each_loss.update(*batch(50, K, seed=2))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= (2 if options.get("warmup") else 1)
    torch.testing.assert_close(dict(loss.named_buffers()), dict(plain.named_buffers()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("k", [3, 40])
def test_compiled_recipes_are_one_graph_for_few_and_many_classes_and_one_logit(k):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    loss = make_loss("focal + 0.5 * mdca + seca")
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    binary = batch(N, 1)[0], (torch.arange(N) % 2).double()
    for z, y in (batch(N, k), binary):
        torch.testing.assert_close(value_and_gradient(compiled, z, y), value_and_gradient(loss, z, y))
