"""Facts: found in what users say, kept with their sources, put into a profile."""
