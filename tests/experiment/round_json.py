"""A round's problem as it is written in JSON: five clients alike."""

CLIENT = {
    "queue": 0.4,
    "cycles": 3e8,
    "capacitance": 5e-28,
    "energy_budget_j": 0.4,
    "gain": 2.5e-8,
    "power_w": 0.2,
    "power_max_w": 0.2,
    "model_bits": 1e6,
    "cpu_max_hz": None,
    "mining_max_hz": None,
}
PROBLEM = {
    "min_clients": 3,
    "tradeoff": 50.0,
    "work_cycles": 690775527.9,
    "bandwidth_hz": 180000.0,
    "noise_w_per_hz": 1e-16,
    "clients": [CLIENT] * 5,
}
