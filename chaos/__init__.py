"""Kills workers, connections and databases while jobs run, then reads every trace and counts what was promised.

`python -m chaos` runs it on both engines; `python -m chaos.mutants` removes one guard at a time and shows that the
checker notices.
"""
