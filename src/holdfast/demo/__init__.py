"""`holdfast demo`: a streaming job that is killed again and again, and the count of its rows."""
