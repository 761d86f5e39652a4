"""The table of transitions keeps the promises that no single row of it can show."""

import importlib
import sys
from pathlib import Path

import pytest

from lien.machine import (
    FAILURE_REASONS,
    LIVE,
    TABLE,
    TERMINAL,
    WAITING,
    Guard,
    Reason,
    State,
    Transition,
    mermaid,
    reachable_from,
)

sys.path.append(str(Path(__file__).parents[2] / "tools"))
draw_machine = importlib.import_module("draw_machine")

ARROWS = list(TABLE.values())


def named(arrow: Transition) -> str:
    return arrow.name


def test_the_states_are_the_five() -> None:
    assert [str(s) for s in State] == ["scheduled", "runnable", "claimed", "succeeded", "failed"]
    assert set(State) == LIVE | TERMINAL
    assert not LIVE & TERMINAL
    assert LIVE - {State.CLAIMED} == WAITING


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_terminal_states_absorb(state: State) -> None:
    assert reachable_from(state) == frozenset()
    assert not [arrow.name for arrow in ARROWS if state in arrow.source]


def test_enqueue_alone_makes_jobs() -> None:
    assert [arrow.name for arrow in ARROWS if not arrow.source] == ["enqueue"]
    assert TABLE["enqueue"].target == WAITING


def closure(states: frozenset[State]) -> frozenset[State]:
    wider = states.union(*map(reachable_from, states))
    return states if wider == states else closure(wider)


def test_every_state_is_reachable() -> None:
    assert closure(TABLE["enqueue"].target) == set(State)


@pytest.mark.parametrize("state", sorted(LIVE))
def test_no_live_state_is_a_dead_end(state: State) -> None:
    assert closure(frozenset({state})) >= TERMINAL


def test_only_a_claim_makes_a_claim() -> None:
    into = [a.name for a in ARROWS if State.CLAIMED in a.target and State.CLAIMED not in a.source]
    assert into == ["claim"]


def test_success_comes_from_a_claim_alone() -> None:
    assert [a.name for a in ARROWS if State.SUCCEEDED in a.target] == ["succeed"]
    assert TABLE["succeed"].source == {State.CLAIMED}


@pytest.mark.parametrize("arrow", ARROWS, ids=named)
def test_what_touches_a_claim_holds_its_token(arrow: Transition) -> None:
    others = {"reap", "request_cancel"}
    assert arrow.token == (State.CLAIMED in arrow.source and arrow.name not in others)
    assert arrow.token == (Guard.TOKEN in arrow.guards)


def test_time_alone_takes_a_claim_away() -> None:
    assert TABLE["reap"].guards == {Guard.LEASE_OVER}


def test_a_cancel_request_moves_nothing() -> None:
    arrow = TABLE["request_cancel"]
    assert arrow.source == arrow.target == {State.CLAIMED}


@pytest.mark.parametrize("arrow", ARROWS, ids=named)
def test_an_attempt_closes_when_its_claim_ends(arrow: Transition) -> None:
    ends = arrow.source == {State.CLAIMED} and State.CLAIMED not in arrow.target
    assert arrow.closes is ends


@pytest.mark.parametrize("arrow", ARROWS, ids=named)
def test_sources_of_an_arrow_are_all_waiting_or_all_claimed(arrow: Transition) -> None:
    assert arrow.source in {frozenset(), frozenset({State.CLAIMED})} or arrow.source <= WAITING


@pytest.mark.parametrize("arrow", ARROWS, ids=named)
def test_an_arrow_says_where_it_leads(arrow: Transition) -> None:
    assert TABLE[arrow.name] is arrow
    assert arrow.target
    assert arrow.doc.endswith(".")


def test_parked_is_no_failure() -> None:
    assert frozenset(Reason) - FAILURE_REASONS == {Reason.UNKNOWN_TASK}


@pytest.mark.parametrize("state", State)
def test_the_states_one_step_away(state: State) -> None:
    expected = {
        State.SCHEDULED: {State.RUNNABLE, State.FAILED},
        State.RUNNABLE: {State.SCHEDULED, State.CLAIMED, State.FAILED},
        State.CLAIMED: set(State),
        State.SUCCEEDED: set(),
        State.FAILED: set(),
    }
    assert reachable_from(state) == expected[state]


def test_the_diagram_has_every_arrow() -> None:
    lines = mermaid().splitlines()
    assert lines[0] == "stateDiagram-v2"
    for arrow in ARROWS:
        for target in arrow.target:
            for source in arrow.source or {"[*]"}:
                assert f"    {source} --> {target}: {arrow.name}" in lines
    drawn = sum(len(a.source or {1}) * len(a.target) for a in ARROWS)
    assert len(lines) == 1 + drawn + len(TERMINAL)
    assert len(set(lines)) == len(lines)


def test_the_page_is_current() -> None:
    assert draw_machine.PAGE.read_text("utf-8") == draw_machine.page()


def test_the_page_has_every_word() -> None:
    page = draw_machine.page()
    words = [*State, *Reason, *TABLE, *draw_machine.AttemptOutcome]
    assert [word for word in words if f"| `{word}` |" not in page] == []
    for counter in ("failures", "lost", "interrupted"):
        assert f"`max_{counter}`" in page


def test_a_stale_page_is_noticed_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(draw_machine, "PAGE", tmp_path / "reference" / "states.md")
    monkeypatch.setattr(sys, "argv", ["draw_machine.py", "--check"])
    assert draw_machine.main() == 1
    assert "is stale: run python tools/draw_machine.py" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["draw_machine.py"])
    assert draw_machine.main() == 0
    monkeypatch.setattr(sys, "argv", ["draw_machine.py", "--check"])
    assert draw_machine.main() == 0
    draw_machine.PAGE.write_text("old")
    assert draw_machine.main() == 1
