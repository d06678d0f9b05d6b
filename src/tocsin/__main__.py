"""`python -m tocsin`: the same program as `tocsin`."""

from .cli import main

if __name__ == "__main__":
    main()
