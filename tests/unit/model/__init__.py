"""A model checker of the protocol: the real `holdfast.core`, a simulated log, endpoint and set of drivers."""
