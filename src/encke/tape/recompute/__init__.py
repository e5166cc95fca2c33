"""Tensors that are computed from stored ones when backward asks for them."""
