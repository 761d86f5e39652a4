"""Engines: one database's SQL files and the operations over them. No I/O, no driver."""
