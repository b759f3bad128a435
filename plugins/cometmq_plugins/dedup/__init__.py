"""Plugin `dedup`: a send that is repeated is stored once and gets the same answer."""
