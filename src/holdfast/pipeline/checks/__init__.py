"""What would break the guarantee, found before the start (R2): one function a finding, by system."""
