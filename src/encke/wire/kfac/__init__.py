"""K-FAC: second-order preconditioning whose factors travel compressed."""

from encke.wire.kfac.cover import Uncovered
from encke.wire.kfac.preconditioner import KFAC, UncoveredWarning
from encke.wire.kfac.sampling import sampled_loss
from encke.wire.kfac.settings import Settings

__all__ = ["KFAC", "Settings", "Uncovered", "UncoveredWarning", "sampled_loss"]
