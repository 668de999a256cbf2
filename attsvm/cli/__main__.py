"""``python -m attsvm.cli`` is the ``attsvm`` command of that interpreter."""

from attsvm.cli import main

if __name__ == "__main__":
    main()
