"""Stores that live on a server: the verbs of the port, written once over a small driver for each server."""
