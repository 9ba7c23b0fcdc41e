"""The suites. Each module has one class with `name`, `about`, `units`, `prepare` and `execute`.

`prepare(sources)` installs and builds what the suite needs and returns the version;
`execute(unit, run)` runs one unit and returns what became of each of its tests:
a dictionary from the test's name to `ok`, `failed` or `skipped`. A test that was never reached
has no entry.
"""

from . import cpython, kernel, postgres, redis_replies, redis_tcl, sqlite, stress

ALL = [cpython.CPython(), redis_tcl.RedisTcl(), redis_replies.RedisReplies(), sqlite.Sqlite(),
       postgres.Postgres(), stress.StressNg(), kernel.Kernel()]
