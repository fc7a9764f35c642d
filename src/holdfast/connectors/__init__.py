"""One module for each system, source and sink side by side."""
