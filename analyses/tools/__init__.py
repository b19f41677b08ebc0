"""Other tools, and ours, behind one small protocol, so that the same checks judge them."""
