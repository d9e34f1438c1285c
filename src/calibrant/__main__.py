"""``python -m calibrant``: the command line, for launchers that start modules, such as torchrun."""

from calibrant.cli import main

if __name__ == "__main__":
    main()
