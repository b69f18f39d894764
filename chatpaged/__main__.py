"""`python -m chatpaged`, and the console script."""

from typing import NoReturn

from chatpaged.cli.signals import leave_at_once


def main() -> NoReturn:
    """Runs the command line and ends the process."""
    leave_at_once()  # before anything that takes time is imported
    from chatpaged.cli.main import main as run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
