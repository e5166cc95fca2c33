"""Stored tensors: how they are made, shared, counted and given back."""
