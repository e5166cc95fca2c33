"""Encke in other people's training loops: one module for each, imported by name.

`encke.integrations.transformers`, `encke.integrations.lightning` and
`encke.integrations.script`; nothing is imported until one of them is.
"""
