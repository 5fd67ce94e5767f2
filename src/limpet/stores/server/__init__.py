"""Stores on a server: the store port, implemented once (`store`) over a small driver for each server (`driver`)."""
