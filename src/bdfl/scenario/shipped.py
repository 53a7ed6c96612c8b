"""Scenarios shipped with the package, by name."""

from pathlib import Path

from bdfl.scenario.checking import ScenarioError


def find_scenario(name_or_path: str) -> Path:
    """Return the path of a scenario file: as given, or the shipped scenario of that name, such as `paper-cifar10`.

    A folder of that name does not hide a shipped scenario. Raises `ScenarioError` with the names available.
    """
    path = Path(name_or_path)
    shipped = shipped_scenarios()
    if path.exists() and not (path.is_dir() and name_or_path in shipped):
        return path
    if name_or_path not in shipped:
        allowed = f"expected a file, or one of {', '.join(shipped) or 'none'}"
        raise ScenarioError("scenario", f"{name_or_path} not found", allowed)
    return shipped[name_or_path]


def shipped_scenarios() -> dict[str, Path]:
    """Files of all shipped scenarios by name, in alphabetical order."""
    package = Path(__file__).parents[1]
    inside, beside = package / "scenarios", package.parents[1] / "scenarios"  # installed, or in a source tree
    folder = inside if inside.is_dir() else beside
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
