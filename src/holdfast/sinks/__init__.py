"""The three kinds of sink an author extends."""
