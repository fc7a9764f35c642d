"""`python -m tests.unit.model` from the root of the checkout."""

from .scenarios import main

if __name__ == "__main__":
    main()
