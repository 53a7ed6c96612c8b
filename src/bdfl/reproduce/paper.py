"""Numbers reported in the paper."""

DATA_SETS = ("svhn", "cifar10")
DATA_SET_NAMES = {"svhn": "SVHN", "cifar10": "CIFAR-10"}

# [Li24, Table IV]: training time (s); SVHN's are those of 200 rounds by our reading.
PAPER_TIME_S = {
    "svhn": {"random": 219.128, "round-robin": 222.479, "channel-best": 207.962, "drc": 188.750},
    "cifar10": {"random": 108.310, "round-robin": 109.658, "channel-best": 103.929, "drc": 90.964},
}
PAPER_REDUCTION_PERCENT = {"svhn": 9.24, "cifar10": 12.47}

# [Li24, Table IV]: test accuracy (%).
PAPER_ACCURACY_PERCENT = {
    "svhn": {"random": 91.134, "round-robin": 91.563, "channel-best": 91.627, "drc": 91.610},
    "cifar10": {"random": 74.85, "round-robin": 75.66, "channel-best": 75.43, "drc": 74.57},
}

FULL_SIZES = {"svhn": (73_257, 26_032), "cifar10": (50_000, 10_000)}  # training and test images as published
