"""Everything that differs by system, behind functions that mean the same on Linux, macOS and Windows.

Only here are the names used that one system has and another lacks. What a system cannot do is left out, where the
user loses nothing by it."""
