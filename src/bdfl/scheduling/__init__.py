"""Who trains, how fast everybody computes and mines: problems, schedulers, certificates and bounds."""
