"""What a trained cell is measured by: bytes over a step, time, peak, errors of gradients."""
