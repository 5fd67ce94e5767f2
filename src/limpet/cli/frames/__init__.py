"""Frames, suspensions and the log on the command line: what waits, who decides, and whether the tokens add up."""
