"""The files by which a machine says what it is, in a folder."""


class FakeMachine:
    """A root folder in which a machine's files can be written."""

    def __init__(self, root):
        self.root = root

    def write(self, path, value):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")

    def zone(self, number, name, energy_uj, range_uj=1_000_000_000):
        folder = f"sys/class/powercap/intel-rapl:{number}"
        self.write(f"{folder}/name", name)
        self.write(f"{folder}/max_energy_range_uj", range_uj)
        self.write(f"{folder}/energy_uj", energy_uj)

    def battery(self, *, status="Discharging", name="BAT0", **files):
        folder = f"sys/class/power_supply/{name}"
        self.write(f"{folder}/type", "Battery")
        self.write(f"{folder}/status", status)
        for file, value in files.items():
            self.write(f"{folder}/{file}", value)
