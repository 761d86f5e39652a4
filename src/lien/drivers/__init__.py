"""Drivers: the only files that touch a connection. One small file each."""
