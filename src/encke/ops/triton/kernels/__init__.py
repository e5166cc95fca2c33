"""The Triton kernels: what runs on the device, one module a codec and one a shared idea.

They see floats as their bit patterns, so that a NaN moves as it is, and use single IEEE
operations only; `encke.ops.triton.launch` turns fused multiply-adds off.
"""
