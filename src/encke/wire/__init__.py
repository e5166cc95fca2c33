"""What ranks exchange: gradients and factors, compressed within a bound."""
