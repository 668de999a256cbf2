"""Speed, accuracy and memory against named peers, in one run: ``python -m attsvm.validation.bench``."""
