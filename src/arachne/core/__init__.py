"""Values with their invariants; this room decides nothing and imports no other."""
