"""Stores on a server: the store port, implemented once over a small driver for each server.

`driver` is the interface of a driver, `store` the implementation of the port. `postgres` and
`redis` hold the two drivers.
"""
