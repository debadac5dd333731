"""What parties send: tensors, trees, and who is rejected."""
