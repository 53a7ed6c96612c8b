"""Many runs from one file: any scenario keys, schedulers and seeds, on this machine or on a cluster, in one table."""
