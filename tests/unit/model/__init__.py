"""A model checker of the protocol that drives the real kernel: coordinator, log, delivery loops, repairs, resolve.

What is simulated is what is outside of it: a store in memory (`store`), endpoints and sinks for them (`endpoints`,
`sinks`), Spark (`spark`), threads and the clock (`scheduler`). `explore` replays executions with other choices, `rules`
switches rules off one by one, `walk` makes seeded random executions for as long as one likes.
"""
