"""Batch norms, with the ReLU or the residual block behind them."""
