"""Real servers on this machine for trying a pipeline: no container, nothing is installed, nothing stays."""
