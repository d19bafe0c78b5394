loops: object  # a capsule: the table of loops, for entries.use
