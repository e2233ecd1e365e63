"""Models: specs, readers, calibration, packing, the registry of aliases and the packed cache."""
