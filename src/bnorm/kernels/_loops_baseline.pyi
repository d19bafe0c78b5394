loops: object  # a capsule: the table of loops, for _cpu.use
