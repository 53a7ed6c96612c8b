"""What is still under way: blocks appear as they are written, and what goes away and comes back is shown so."""

import pytest
from playwright.sync_api import Page, expect

from bdfl.node.status import ServiceState
from tests.browser.explorer_process import explore
from tests.browser.fake_network import FakeNode, fake_network
from tests.browser.folders import RunWriter, example_scenario, write_empty_run


def where(page: Page):
    return page.locator(".replay-where b")


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """A run of twelve rounds, three of them done at first; every test adds some."""
    with RunWriter(tmp_path_factory.mktemp("runs") / "growing") as growing:
        for _ in range(3):
            growing.write_round()
        yield growing


@pytest.fixture(scope="module")
def following(chromium, writer):
    """The explorer of that run."""
    with explore(writer.path) as served:
        yield served


def test_a_run_under_way_grows_while_it_is_looked_at(look, following, writer):
    page = look(following.origin).open("/").page
    expect(where(page)).to_have_text(f"Block {writer.height} of {writer.height}")
    expect(page.locator("#state")).to_have_text("live")
    for _ in range(2):
        height = writer.write_round()
        expect(where(page)).to_have_text(f"Block {height} of {height}")
        expect(page.locator(f"a.block-tile[data-height='{height}']").first).to_be_attached()
    page.locator("main").get_by_text(f"{90 - 60 / height:.1f}").first.wait_for()  # its accuracy, in percent


def test_who_looks_back_is_not_moved_on_by_a_new_block(look, following, writer):
    page = look(following.origin).open("/?at=2").page
    expect(where(page)).to_have_text(f"Block 2 of {writer.height}")
    expect(page.locator("#state")).to_have_text("looking back")
    height = writer.write_round()
    expect(where(page)).to_have_text(f"Block 2 of {height}")
    page.get_by_role("button", name="Live").click()
    expect(where(page)).to_have_text(f"Block {height} of {height}")
    expect(page.locator("#state")).to_have_text("live")


def test_the_pages_of_blocks_and_network_follow_too(look, following, writer):
    blocks = look(following.origin).open("/blocks").page
    network = look(following.origin).open("/network").page
    height = writer.write_round()
    expect(blocks.locator(f"main a[href*='/block/{height}']").first).to_be_visible()
    expect(where(network)).to_have_text(f"Block {height} of {height}")


@pytest.mark.parametrize("path", ["/", "/network", "/blocks", "/client/0", "/model/0", "/what-if", "/compare"])
def test_an_empty_run_says_so_on_every_page(look, folders, empty_explorer, path):
    page = look(empty_explorer.origin).open(path).page
    assert "could not be drawn" not in page.locator("main").inner_text()
    assert "NaN" not in page.locator("body").inner_text()
    assert "undefined" not in page.locator("body").inner_text()
    expect(where(page)).to_have_text("Block 0 of 0")


@pytest.fixture(scope="module")
def empty_explorer(chromium, folders):
    with explore(write_empty_run(folders / "empty")) as served:
        yield served


def test_a_first_block_ends_the_emptiness(look, serve, tmp_path):
    with RunWriter(tmp_path / "new", example_scenario("rounds=2")) as writer:
        page = look(serve(writer.path).origin).open("/").page
        expect(where(page)).to_have_text("Block 0 of 0")
        writer.write_round()
        expect(where(page)).to_have_text("Block 1 of 1")
        expect(page.locator("a.block-tile[data-height='1']").first).to_be_attached()


def test_a_server_that_goes_away_and_comes_back_is_noticed(look, writer):
    with explore(writer.path) as first:
        opened = look(first.origin)
        opened.allow("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY")
        page = opened.open("/").page
        expect(page.locator("#state")).to_have_text("live")
    expect(page.locator("#state")).to_have_text("connection lost")
    expect(page.locator("#banner")).to_contain_text("Connection lost")
    height = writer.write_round()
    with explore(writer.path, port=int(first.origin.rpartition(":")[2])):
        expect(page.locator("#state")).to_have_text("live", timeout=60_000)
        expect(where(page)).to_have_text(f"Block {height} of {height}")
        expect(page.locator("#banner")).to_be_empty()


@pytest.fixture
def node(writer):
    with FakeNode(0, writer.path, lambda: writer.height) as fake:
        yield fake


def test_a_node_that_goes_away_and_comes_back_is_shown_so(look, serve, writer, node):
    opened = look(serve("--node", node.address).origin)
    page = opened.open("/").page
    expect(where(page)).to_have_text(f"Block {writer.height} of {writer.height}")
    expect(page.locator("#state")).to_have_text("live")
    height = writer.write_round()
    expect(where(page)).to_have_text(f"Block {height} of {height}")
    node.go()
    expect(page.locator("#state")).to_have_text("gone")
    expect(page.locator("#banner")).to_contain_text("Gone")
    height = writer.write_round()
    node.come()
    expect(page.locator("#state")).to_have_text("live")
    expect(where(page)).to_have_text(f"Block {height} of {height}")
    expect(page.locator("#banner")).to_be_empty()
    opened.open(f"/block/{height}")
    expect(page.locator("#verification [data-chain]")).to_have_attribute("data-chain", "ok")


def test_nodes_of_a_network_that_are_offline_look_offline(look, serve, tmp_path):
    with fake_network(tmp_path / "network") as (writer, nodes):
        page = look(serve(tmp_path / "network").origin).open("/").page
        expect(page.locator("#state")).to_have_text("live")
        chip = page.locator(".client-chip[data-client='3']")
        expect(chip).not_to_have_attribute("data-state", "offline")
        nodes[3].go()
        expect(chip).to_have_attribute("data-state", "offline")
        expect(page.locator(".client-chip[data-client='2']")).not_to_have_attribute("data-state", "offline")
        page.get_by_role("link", name="Network").click()
        page.locator("main").get_by_text("offline").first.wait_for()
        nodes[3].come()
        writer.write_round()
        expect(where(page)).to_have_text("Block 2 of 2")
        page.get_by_role("link", name="Overview").click()
        expect(chip).not_to_have_attribute("data-state", "offline")


def test_states_of_nodes_are_shown_with_their_reason_until_all_are_finished(look, serve, tmp_path):
    with fake_network(tmp_path / "network") as (_, nodes):
        page = look(serve(tmp_path / "network").origin).open("/").page
        expect(page.locator("#state")).to_have_text("live")
        expect(page.locator("#banner")).to_be_empty()
        reason = "2 of 5 votes can be reached (members 0, 1), 4 needed"
        for node in nodes[:2]:
            node.state, node.reason = ServiceState.WAITING, reason
        nodes[4].state, nodes[4].reason = ServiceState.CATCHING_UP, "at block 1, 12 behind the others"
        expect(page.locator("#banner")).to_have_text(f"Waiting, nodes 0, 1: {reason}")
        expect(page.locator(".client-chip[data-client='1'] .client-state")).to_have_text("waiting")
        expect(page.locator(".client-chip[data-client='4'] .client-state")).to_have_text("catching up")
        assert reason in page.locator(".client-chip[data-client='1']").get_attribute("aria-label")
        for node in nodes:
            node.state, node.reason = ServiceState.FINISHED, "block 1, the last, is decided"
        expect(page.locator("#state")).to_have_text("finished")
        expect(page.locator("#banner")).to_contain_text("Finished: block 1, the last, is decided.")
        expect(page.locator("#banner")).to_contain_text("bdfl explore FOLDER")
        nodes[0].go()
        expect(page.locator("#banner .warn")).to_contain_text("Stopped, node 0: ")
