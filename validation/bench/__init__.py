"""Speed, accuracy and memory against named peers, in one run: ``attsvm bench``."""
