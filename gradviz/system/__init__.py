"""Everything that differs by system, behind functions that mean the same on Linux, macOS and Windows.

Names that exist only on some systems are used only here. If a system lacks a feature that the user does not miss, the
feature is left out."""
