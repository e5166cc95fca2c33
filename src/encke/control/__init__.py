"""How large each error may be: theory, measurement, allocation, guard."""

from encke.control.adaptive import Adaptive
from encke.control.advise import advise
from encke.control.attach import activations, attach
from encke.control.bits import GroupBits
from encke.control.budget import Budget, BudgetError
from encke.control.comet import Comet
from encke.control.fixed import Fixed

__all__ = [
    "Adaptive",
    "Budget",
    "BudgetError",
    "Comet",
    "Fixed",
    "GroupBits",
    "activations",
    "advise",
    "attach",
]
