"""Kernels and their dispatch: one format, several backends."""
