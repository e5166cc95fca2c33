"""What an error in a saved tensor does to a weight's gradient.

For a linear layer or convolution the saved input enters only dW, and each dW is a sum of
products of input and dY. Independent errors of mean square m in the input therefore give

    E‖ΔdW‖² = m · products · ‖dY‖²

where m = e²/3 · R for a uniform error within ±e on the share R of values that are not zero
(COMET's σ ≈ a·L̄·√(N·R)·e is the square root of this, with the sum over positions hidden in
L̄ and a fitted). No constant is fitted here, and ‖dY‖² is at hand in backward.
"""

from __future__ import annotations

from encke.tape.policy import GradientEffect


def signal_share(effect: GradientEffect) -> float:
    """How much of a relative error in dY arrives in dW.

    An error that is independent from element to element adds up like random signs do, the
    gradient itself adds up coherently: the quotient of the two sums of squares.
    """
    if effect.parameter_square <= 0:
        return 1.0
    random = effect.input_square * effect.products * effect.gradient_square
    return min(1.0, random / effect.parameter_square)
