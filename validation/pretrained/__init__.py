"""Real models whose weights come inside packages: files are read, code of the packages is never imported."""
