"""Names of tests within a unit."""


def named(results, name, status):
    """Notes a result; a name that comes twice gets a number."""
    key, count = name, 1
    while key in results:
        count += 1
        key = f"{name} #{count}"
    results[key] = status
