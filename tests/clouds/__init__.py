"""What `make clouds` runs before its crash cases; npm and Go fetch what it needs, so it is no part of `make test`."""
