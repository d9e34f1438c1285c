"""Values with a gradient in closed form, which needs fewer tensors of the size of the logits.

Autograd stores such a tensor for every operation of a formula, and allocating a tensor costs more than
filling it. Where the gradient is one short expression of the probabilities, that expression is used instead.
Gradients of higher order come from the definition, through autograd.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Definition: TypeAlias = Callable[[Tensor], Tensor]
Gradient: TypeAlias = Callable[[Tensor], Tensor]
ValuesAndGradient: TypeAlias = tuple[Tensor, Gradient]
Shortcut: TypeAlias = Callable[[Tensor], ValuesAndGradient]


def with_known_gradient(
    logits: Tensor, kept: Tensor | None, *, definition: Definition, shortcut: Shortcut
) -> Tensor:
    """Return ``definition(logits)``, computed by the shortcut, and 0 for ignored samples.

    Args:
        logits: The only input that gets a gradient.
        kept: Which samples are not ignored, in the shape of the values; None if no sample is ignored.
        definition: The formula in operations that autograd follows.
        shortcut: Returns the same values and a function from their gradient to that of the logits. The
            function may be called more than once and must not change the tensors it holds.

    While compiling, the definition is traced instead: the compiler fuses its operations itself.
    """
    if torch.compiler.is_compiling():
        traced = definition(logits)
        return traced if kept is None else torch.where(kept, traced, 0)
    values: Tensor = _KnownGradient.apply(logits, kept, definition, shortcut)  # type: ignore[no-untyped-call]  # torch's own
    return values


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # torch gives the context no type
        logits: Tensor,
        kept: Tensor | None,
        definition: Definition,
        shortcut: Shortcut,
    ) -> Tensor:
        values, ctx.gradient = shortcut(logits.detach())
        ctx.definition = definition
        ctx.save_for_backward(logits, kept)
        return values if kept is None else torch.where(kept, values, 0)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401  # as above
        logits, kept = ctx.saved_tensors
        if kept is not None:
            outer = torch.where(kept, outer, 0)
        if torch.is_grad_enabled():  # the caller differentiates the gradient again
            (inner,) = torch.autograd.grad(ctx.definition(logits), logits, outer, create_graph=True)
        else:
            inner = ctx.gradient(outer)
        return inner, None, None, None
