"""Gradient exchange on shaped links of one machine: stock hooks and ours, side by side."""
