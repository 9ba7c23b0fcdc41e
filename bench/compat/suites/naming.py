"""Names of tests within a unit."""

import collections


def numbered(pairs):
    """A dictionary of names and results; a name that comes again gets a number."""
    results, seen = {}, collections.Counter()
    for name, status in pairs:
        seen[name] += 1
        results[name if seen[name] == 1 else f"{name} #{seen[name]}"] = status
    return results
