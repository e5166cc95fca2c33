"""What storing costs in time, where the peak lies, and what is left to autograd."""
