"""What the error of a stored tensor does to the gradients, measured in backward."""
