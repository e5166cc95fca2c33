"""What ranks exchange: gradients and factors, compressed within a bound.

Names are imported on first use: `import encke.wire` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encke.wire.certificate import CertificateError
    from encke.wire.comm import CompressedComm, merged_states
    from encke.wire.curvature import CurvaturePlan, plan_curvature
    from encke.wire.curvature_tuner import tune_curvature
    from encke.wire.failure import ExchangeError
    from encke.wire.kfac import KFAC
    from encke.wire.noise import NoiseRule
    from encke.wire.order import ClosedError
    from encke.wire.plan import Choice, Plan
    from encke.wire.protocol import BoundPolicy, Collectives, Observation, Segment
    from encke.wire.tuner import tune
    from encke.wire.wrap import Wrapped, ddp

_HOMES = {
    "BoundPolicy": "protocol",
    "CertificateError": "certificate",
    "Choice": "plan",
    "ClosedError": "order",
    "Collectives": "protocol",
    "CompressedComm": "comm",
    "CurvaturePlan": "curvature",
    "ExchangeError": "failure",
    "KFAC": "kfac",
    "NoiseRule": "noise",
    "Observation": "protocol",
    "Plan": "plan",
    "Segment": "protocol",
    "Wrapped": "wrap",
    "ddp": "wrap",
    "merged_states": "comm",
    "plan_curvature": "curvature",
    "tune": "tuner",
    "tune_curvature": "curvature_tuner",
}

__all__ = [
    "KFAC",
    "BoundPolicy",
    "CertificateError",
    "Choice",
    "ClosedError",
    "Collectives",
    "CompressedComm",
    "CurvaturePlan",
    "ExchangeError",
    "NoiseRule",
    "Observation",
    "Plan",
    "Segment",
    "Wrapped",
    "ddp",
    "merged_states",
    "plan_curvature",
    "tune",
    "tune_curvature",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'encke.wire' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"encke.wire.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
