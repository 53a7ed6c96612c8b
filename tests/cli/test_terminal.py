"""Progress: plain lines where there is no terminal, and none for what is over at once."""

from bdfl.cli.terminal import progress


def test_what_is_over_at_once_says_nothing(capsys):
    with progress("working", "parts") as update:
        update(1, 2)
        update(2, 2)
    assert capsys.readouterr().err == ""


def test_long_work_says_how_far_it_is_and_how_long_it_takes(capsys, monkeypatch):
    clock = iter([0.0, 4.0, 5.0, 8.0])
    monkeypatch.setattr("bdfl.cli.terminal.time.monotonic", lambda: next(clock))
    with progress("working", "parts") as update:
        for done in (1, 2, 3):
            update(done, 4)
    assert capsys.readouterr().err.splitlines() == [
        "working: 1 of 4 parts, 12 s left",
        "working: 3 of 4 parts, 3 s left",
    ]


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress("working", "parts") as update:
        update(1, 2)
    assert "working" in capsys.readouterr().err
