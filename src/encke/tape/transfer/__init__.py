"""Packing on a side stream, and packed bytes that leave the device."""
