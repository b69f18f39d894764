"""`python -m chatpaged`."""

from chatpaged.cli.main import main

if __name__ == "__main__":
    main()
