"""Reading autograd's graph, replacing what it saved, and seeing ops as they run."""
