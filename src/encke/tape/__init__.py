"""What backward keeps: activations, recognised by op and role, compressed within bounds."""

# These fill the tables of `rules` and `derive`.
from encke.tape import elementwise, exact_ops, lossy_ops, norm_outputs  # noqa: F401
from encke.tape.protocol import Effect, Policy, Sight, Site, Treatment
from encke.tape.rules import Need, Rule, add_rule
from encke.tape.tape import Tape

__all__ = [
    "Effect",
    "Need",
    "Policy",
    "Rule",
    "Sight",
    "Site",
    "Tape",
    "Treatment",
    "add_rule",
]
