"""Every error that Lien raises. All derive from LienError; the message says what, which, and what to do."""

from __future__ import annotations


class LienError(Exception):
    """Base of all errors of this package."""


class UsageError(LienError, ValueError):
    """A call or a setting that cannot mean anything sensible; nothing was written."""


class UnsupportedConnection(LienError, TypeError):
    """The object given as a connection is not one that Lien can enqueue through."""


class PayloadError(LienError, ValueError):
    """A value cannot be stored as JSON on every engine; the message names the path to it."""


class SignatureError(LienError, TypeError):
    """The arguments do not fit the task's signature."""


class UnknownTask(LienError, LookupError):
    """No task of this name is registered here."""


class DatabaseError(LienError):
    """The database refused or failed; the cause is the driver's own error."""


class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached, or cannot be written to (a read-only server counts as lost)."""


class SchemaError(DatabaseError):
    """The tables are missing, behind or ahead of this version; ``lien migrate`` is the fix."""


class ServerTooOld(DatabaseError):
    """The database server lacks what Lien needs; the message has the version found and the version needed."""


class StaleClaim(LienError):
    """This claim is no longer the job's: another worker or the reaper took over. Nothing was changed."""


class LeaseLost(StaleClaim):
    """The lease could not be renewed in time; the handler should stop."""


class JobNotFound(LienError, LookupError):
    """No job has this id."""


class TransitionRefused(LienError):
    """The job is not in a state from which this is possible."""
