task: object  # a capsule: the loops, for entries.use
