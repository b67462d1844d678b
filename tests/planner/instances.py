"""Which random problems a slow test runs: all, or the part that ARACHNE_INSTANCES names."""

import os


def instances(end: int) -> range:
    """Seeds 0 to `end` − 1; of these from the first to below the second of `2000:4000`."""
    first, last = map(int, os.environ.get("ARACHNE_INSTANCES", f"0:{end}").split(":"))
    return range(first, min(last, end))
