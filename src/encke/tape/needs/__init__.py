"""What each op's backward needs of the tensors that it saved."""
