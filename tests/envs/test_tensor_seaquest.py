"""MinAtar's Seaquest as a tensor environment: equal to the package from thousands of states and in rare cases."""

import copy
import functools
import inspect
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from minatar_draws import ScriptedDraws
from rl_training.core.counters import Keys
from rl_training.core.types import State
from rl_training.envs.tensor_env import TensorEnvs
from rl_training.envs.tensor_seaquest import BULLETS, DIVERS, ENEMIES, Seaquest

minatar = pytest.importorskip("minatar", reason="pip install 'rl-training[minatar]'")
seaquest = pytest.importorskip("minatar.environments.seaquest")

NOOP, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
RULES = 2  # the lane of the rules' random numbers
NUMBERS = {  # name in our state: attribute of the package's game
    "player_x": "sub_x",
    "player_y": "sub_y",
    "oxygen": "oxygen",
    "aboard": "diver_count",
    "surfaced": "surface",
    "shot_timer": "shot_timer",
    "spawn_timer": "e_spawn_timer",
    "spawn_speed": "e_spawn_speed",
    "diver_timer": "d_spawn_timer",
    "move_speed": "move_speed",
    "ramp_index": "ramp_index",
}
Game = dict[str, Any]  # the attributes of the package's game


# ------------------------------------------------------------------------------------- between the package and tensors


def attributes(game: Any) -> Game:
    """Return a copy of all that changes in a game of the package."""
    values = {name: value for name, value in vars(game).items() if isinstance(value, int | list)}
    return copy.deepcopy({name: value for name, value in values.items() if name != "action_map"})


def game_with(**changes: Any) -> Game:
    return attributes(seaquest.Env()) | changes


def difficulty(level: int) -> Game:
    """Return the speeds after so many ascents."""
    return {"ramp_index": level, "e_spawn_speed": max(1, 20 - level), "move_speed": max(2, 5 - level // 2)}


def as_rows(games: list[Game]) -> State:
    """Return the games as a state of the tensor environment, the newest object of a kind in its first slot."""

    def slots(lists: list[list[list[int]]], names: str, size: int) -> dict[str, torch.Tensor]:
        table = np.zeros((len(lists), size, len(names.split())), np.int64)
        for row, objects in zip(table, lists, strict=True):
            for slot, values in enumerate(reversed(objects)):
                row[slot] = values
        return dict(zip(names.split(), torch.from_numpy(table).unbind(2), strict=True))

    def headed(objects: list[Any], *more: int) -> list[list[int]]:
        return [[x, y, 1 if right else -1, *rest, *more] for x, y, right, *rest in objects]

    enemies = [
        headed([one[:4] for one in game["e_fish"]], 1, 0) + [[*one[:4], one[4], 1] for one in headed(game["e_subs"])]
        for game in games
    ]
    kinds = {
        "bullet": slots([headed(game["f_bullets"]) for game in games], "x y heading", BULLETS),
        "diver": slots([headed(game["divers"]) for game in games], "x y heading wait", DIVERS),
        "enemy": slots(enemies, "x y heading wait shot is_sub", ENEMIES),
    }
    kinds["enemy"]["is_sub"] = kinds["enemy"]["is_sub"].bool()
    shots = {"shots_left": np.zeros((len(games), 10, 10), bool), "shots_right": np.zeros((len(games), 10, 10), bool)}
    for row, game in enumerate(games):
        for x, y, right in game["e_bullets"]:
            shots["shots_right" if right else "shots_left"][row, y, x] = True
    return {
        **{name: torch.tensor([game[other] for game in games]) for name, other in NUMBERS.items()},
        "facing": torch.tensor([1 if game["sub_or"] else -1 for game in games]),
        **{f"{kind}.{name}": value for kind, objects in kinds.items() for name, value in objects.items()},
        **{name: torch.from_numpy(board) for name, board in shots.items()},
        "last_action": torch.zeros(len(games), dtype=torch.int64),
    }


def as_games(state: State) -> list[Game]:
    """Return the rows of a state as attributes of the package's game, without `terminal` and `ramping`."""
    columns = {name: value.tolist() for name, value in state.items()}

    def listed(kind: str, names: str, row: int, is_sub: bool | None = None) -> list[list[Any]]:
        values = zip(*(columns[f"{kind}.{name}"][row] for name in names.split()), strict=True)
        found = [list(one) for one in values if one[2]]
        if is_sub is not None:
            kept = zip(columns["enemy.heading"][row], columns["enemy.is_sub"][row], strict=True)
            found = [
                one for one, sub in zip(found, [sub for heading, sub in kept if heading], strict=True) if sub == is_sub
            ]
        return [[x, y, heading > 0, *rest] for x, y, heading, *rest in reversed(found)]

    def shots(row: int) -> list[list[Any]]:
        boards = (columns["shots_left"][row], columns["shots_right"][row])
        return [
            [x, y, bool(right)]
            for right, board in enumerate(boards)
            for y in range(10)
            for x in range(10)
            if board[y][x]
        ]

    return [
        {
            **{other: columns[name][row] for name, other in NUMBERS.items()},
            "sub_or": columns["facing"][row] > 0,
            "f_bullets": listed("bullet", "x y heading", row),
            "e_bullets": shots(row),
            "e_fish": listed("enemy", "x y heading wait", row, False),
            "e_subs": listed("enemy", "x y heading wait shot", row, True),
            "divers": listed("diver", "x y heading wait", row),
        }
        for row in range(len(columns["facing"]))
    ]


def without_copies(game: Game) -> Game:
    """Return what is compared. Equal enemy bullets do the same, and nothing stops one: a set of them."""
    shots = sorted([x, y, bool(right)] for x, y, right in game["e_bullets"])
    shots = [one for number, one in enumerate(shots) if one not in shots[:number]]
    return {name: value for name, value in game.items() if name not in ("terminal", "ramping")} | {"e_bullets": shots}


def keys(rows: int, step: int = 1) -> Keys:
    count = torch.arange(rows)
    return Keys(torch.full_like(count, 11), count, torch.zeros_like(count), torch.full_like(count, step))


def check_one_step(games: list[Game], actions: list[int], ramping: bool = True) -> list[tuple[float, bool]]:
    """Step each game in the package and as a row; compare all that results. Return rewards and ends."""
    env, oracle, draws = (
        Seaquest(sticky_action_prob=0.0, difficulty_ramping=ramping),
        seaquest.Env(ramping),
        ScriptedDraws(),
    )
    oracle.random = draws
    draws.set_rows(keys(len(games)), RULES)
    state = as_rows(games)
    seen = env.observe(state).numpy()
    after, rewards, terminated = env.step(state, torch.tensor(actions), keys(len(games)))
    observed, found, results = env.observe(after).numpy(), as_games(after), []
    for row, (game, action) in enumerate(zip(games, actions, strict=True)):
        vars(oracle).update(copy.deepcopy(game), terminal=False, ramping=ramping)
        assert np.array_equal(seen[row], oracle.state()), game
        draws.use(row)
        results.append(oracle.act(action))
        assert (float(rewards[row]), bool(terminated[row])) == results[-1], (game, action)
        assert without_copies(found[row]) == without_copies(attributes(oracle)), (game, action)
        assert np.array_equal(observed[row], oracle.state()), (game, action)
    return results


# ------------------------------------------------------------------------------------------------------------- players


def sensible_action(game: Any, generator: np.random.Generator) -> int:
    """Rescue divers, surface in time, shoot at the nearest row; sometimes anything."""
    if generator.random() < 0.25:
        return int(generator.integers(6))
    if game.sub_y == 0 or (game.oxygen < 60 and game.diver_count != 0) or game.diver_count == 6:
        return UP if game.sub_y > 0 else DOWN
    if game.divers and generator.random() < 0.7:
        x, y, *_ = game.divers[0]
        return next(
            (move for far, move in ((game.sub_y - y, UP), (y - game.sub_y, DOWN), (game.sub_x - x, LEFT)) if far > 0),
            RIGHT,
        )
    return int(generator.choice([FIRE, FIRE, LEFT, RIGHT, DOWN]))


@functools.cache
def played_games() -> tuple[list[Game], dict[str, int]]:
    """Return states from games of the package at all difficulties, and the most objects of each kind in a list.

    The player is not stopped by an end: no rule of the game asks whether it has ended.
    """
    generator, games, most = np.random.default_rng(0), [], dict.fromkeys(("f_bullets", "divers", "enemies"), 0)
    for episode in range(60):
        game = seaquest.Env()
        game.random = np.random.RandomState(episode)
        vars(game).update(difficulty(episode % 20), diver_count=int(generator.integers(-2, 7)))
        for _ in range(250):
            game.act(sensible_action(game, generator))
            if game.terminal and game.sub_y == 0 and game.diver_count == 0:
                game.diver_count = int(generator.integers(1, 7))
            if game.oxygen <= -2:
                game.oxygen = int(generator.integers(1, 201))
            game.terminal = False
            enemies = len(game.e_fish) + len(game.e_subs)
            sizes = {"f_bullets": len(game.f_bullets), "divers": len(game.divers), "enemies": enemies}
            most = {name: max(size, most[name]) for name, size in sizes.items()}
            if generator.random() < 0.4:
                games.append(attributes(game))
    return games, most


# ---------------------------------------------------------------------------------------------------- one step

AT = {"sub_x": 4, "sub_y": 3, "surface": False}  # the player under water
RARE: dict[str, tuple[Game, int, tuple[int, bool]]] = {
    # name: what differs from a new game, the action, and the reward and end by hand
    "surface without divers": (AT | {"sub_y": 1}, UP, (0, True)),
    "surface with one diver": (AT | {"sub_y": 1, "diver_count": 1}, UP, (0, False)),
    "surface with six divers, 155 * 10 // 200": (AT | {"sub_y": 1, "diver_count": 6, "oxygen": 155}, UP, (7, False)),
    "surface in debt of divers": (AT | {"sub_y": 1, "diver_count": -1}, UP, (0, False)),
    "stay at the surface without divers": ({"sub_y": 0, "surface": True}, UP, (0, False)),
    "breathe the last oxygen": (AT | {"oxygen": 1}, NOOP, (0, False)),
    "drown": (AT | {"oxygen": 0}, NOOP, (0, True)),
    "surface with six divers a step too late": (AT | {"sub_y": 1, "diver_count": 6, "oxygen": 0}, UP, (0, True)),
    "two divers at the player, one place left": (
        AT | {"diver_count": 5, "divers": [[4, 3, True, 0], [4, 3, False, 0]]},
        NOOP,
        (0, False),
    ),
    "two divers move to the player, one place left": (
        AT | {"diver_count": 5, "divers": [[3, 3, True, 0], [5, 3, False, 0]]},
        NOOP,
        (0, False),
    ),
    "a diver at the player, no place left": (AT | {"diver_count": 6, "divers": [[4, 3, True, 2]]}, NOOP, (0, False)),
    "divers leave the board": ({"divers": [[9, 3, True, 0], [0, 4, False, 0]]}, NOOP, (0, False)),
    "a bullet meets the older of two fish": (
        {"f_bullets": [[5, 2, True]], "e_fish": [[6, 2, False, 0], [6, 2, False, 1]]},
        NOOP,
        (1, False),
    ),
    "a bullet meets the older of two submarines": (
        {"f_bullets": [[5, 2, True]], "e_subs": [[6, 2, False, 0, 4], [6, 2, False, 1, 5]]},
        NOOP,
        (1, False),
    ),
    "a bullet meets a fish before an older submarine": (
        {"f_bullets": [[5, 2, True]], "e_fish": [[6, 2, False, 1]], "e_subs": [[6, 2, False, 0, 3]]},
        NOOP,
        (1, False),
    ),
    "a bullet overtaken by the next one, with a fish at its place": (
        {"sub_x": 8, "sub_y": 2, "sub_or": True, "f_bullets": [[9, 2, True]], "e_fish": [[9, 2, False, 5]]},
        FIRE,
        (1, False),
    ),
    "two bullets hit two fish": (
        {"shot_timer": 3, "f_bullets": [[5, 2, True], [3, 4, False]], "e_fish": [[6, 2, False, 3], [2, 4, True, 3]]},
        NOOP,
        (2, False),
    ),
    "enemies swim into bullets": (
        {
            "shot_timer": 3,  # as it is while two bullets fly
            "f_bullets": [[5, 2, True], [3, 4, False]],
            "e_fish": [[7, 2, False, 0]],
            "e_subs": [[1, 4, True, 0, 5]],
        },
        NOOP,
        (2, False),
    ),
    "a submarine shoots as it swims into a bullet": (
        {"f_bullets": [[5, 2, True]], "e_subs": [[7, 2, False, 0, 0]]},
        NOOP,
        (1, False),
    ),
    "submarines shoot as they leave": ({"e_subs": [[9, 2, True, 0, 0], [0, 4, False, 0, 0]]}, NOOP, (0, False)),
    "two bullets of enemies in a cell, in both directions": (
        {"e_bullets": [[5, 2, True], [5, 2, False], [5, 2, True]]},
        NOOP,
        (0, False),
    ),
    "swim into a fish": (AT | {"e_fish": [[5, 3, False, 3]]}, RIGHT, (0, True)),
    "a fish swims into the player": (AT | {"e_fish": [[5, 3, False, 0]]}, NOOP, (0, True)),
    "a submarine swims into the player": (AT | {"e_subs": [[3, 3, True, 0, 5]]}, NOOP, (0, True)),
    "swim into a submarine as it leaves": (
        AT | {"sub_x": 1, "e_subs": [[0, 3, False, 0, 5]]},
        LEFT,
        (0, True),
    ),
    "a submarine in front shoots": (AT | {"e_subs": [[3, 3, True, 2, 0]]}, NOOP, (0, True)),
    "swim into a bullet that flies on": (AT | {"e_bullets": [[5, 3, True]]}, RIGHT, (0, True)),
    "a bullet reaches the player": (AT | {"e_bullets": [[5, 3, False]]}, NOOP, (0, True)),
    "a shot in the step of the end counts": (
        AT | {"oxygen": 0, "f_bullets": [[6, 2, True]], "e_fish": [[7, 2, False, 3]]},
        NOOP,
        (1, True),
    ),
    "the walls": (AT | {"sub_x": 9, "sub_y": 8, "sub_or": True}, RIGHT, (0, False)),
    "fire too early": (AT | {"shot_timer": 2}, FIRE, (0, False)),
}


def test_one_step_from_thousands_of_states_equals_the_package_on_every_line_of_it() -> None:
    functions = [getattr(seaquest.Env, name) for name in ("act", "state", "_surface", "_spawn_enemy", "_spawn_diver")]
    codes = {function.__code__ for function in functions}
    executed: set[int] = set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code not in codes:
            return None
        executed.add(frame.f_lineno)
        return trace

    played, _ = played_games()
    games = [*played, *(game_with(**changes) for changes, _, _ in RARE.values())]
    actions = np.random.default_rng(1).integers(6, size=len(played)).tolist() + [
        action for _, action, _ in RARE.values()
    ]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        results = check_one_step(games, actions)
    finally:
        sys.settrace(before)
    assert len(games) > 5_000
    assert sum(ended for _, ended in results) > 300
    lines = {line for code in codes for _, _, line in code.co_lines() if line and line != code.co_firstlineno}
    source = inspect.getsource(seaquest).splitlines()
    # All but a step after the end of an episode.
    assert [source[line - 1].strip() for line in sorted(lines - executed)] == ["return r, self.terminal"]


def test_one_step_without_ramping_equals_the_package() -> None:
    games = [game | difficulty(0) for game in played_games()[0][::10]]
    check_one_step(games, [UP] * len(games), ramping=False)


@pytest.mark.parametrize("name", RARE)
def test_a_rare_case_equals_the_package_and_the_rules(name: str) -> None:
    changes, action, expected = RARE[name]
    assert check_one_step([game_with(**changes)], [action]) == [expected]
    everywhere = [game_with(**changes, **difficulty(level)) for level in (0, 5, 19) for _ in range(6)]
    check_one_step(everywhere, list(range(6)) * 3)


# ---------------------------------------------------------------------------------------------------- whole episodes


@pytest.mark.parametrize("ramping", [True, False])
def test_whole_episodes_equal_the_package(ramping: bool) -> None:
    rows, steps = 40, 250
    envs = TensorEnvs(Seaquest(difficulty_ramping=ramping), rows, seed=5)
    draws, generator = ScriptedDraws(), np.random.default_rng(2)
    oracles = [minatar.Environment("seaquest", 0.1, ramping) for _ in range(rows)]
    state = envs.start()
    for row, oracle in enumerate(oracles):
        oracle.random = oracle.env.random = draws
        vars(oracle.env).update(difficulty(row % 20))  # of the first episode of a row
    for name in ("ramp_index", "spawn_speed", "move_speed"):
        state[f"env.{name}"] = torch.tensor([getattr(oracle.env, NUMBERS[name]) for oracle in oracles])
    total, ends, ascents = 0.0, 0, 0
    for _ in range(steps):
        actions = [sensible_action(oracle.env, generator) for oracle in oracles]
        asked = envs.keys(state)
        draws.set_rows(Keys(asked.seed, asked.env, asked.episode, asked.step + 1), RULES)
        state, result = envs.step(state, torch.tensor(actions))
        for row, (oracle, action) in enumerate(zip(oracles, actions, strict=True)):
            draws.use(row)
            level = oracle.env.ramp_index
            reward, ended = oracle.act(action)
            assert (float(result.rewards[row]), bool(result.terminated[row])) == (reward, ended)
            assert np.array_equal(result.final_obs[row].numpy(), oracle.state())
            total, ends, ascents = total + reward, ends + ended, ascents + oracle.env.ramp_index - level
            if ended:
                oracle.last_action = 0
                oracle.reset()
                assert np.array_equal(result.obs[row].numpy(), oracle.state())
    assert min(total, ends) > 50
    assert (ascents > 5) == ramping


def test_long_play_past_the_ends_of_episodes_equals_the_package_object_by_object() -> None:
    # No rule asks whether the episode has ended. So games get far, and lists long, at all difficulties.
    env, draws, generator = Seaquest(sticky_action_prob=0.0), ScriptedDraws(), np.random.default_rng(3)
    games = [seaquest.Env() for _ in range(20)]
    for level, game in enumerate(games):
        vars(game).update(difficulty(level), random=draws, diver_count=level % 8 - 1)
    state = as_rows([attributes(game) for game in games])
    for step in range(1, 251):
        asked = keys(len(games), step)
        draws.set_rows(asked, RULES)
        actions = [sensible_action(game, generator) for game in games]
        state, _, _ = env.step(state, torch.tensor(actions), asked)
        for row, (game, action, found) in enumerate(zip(games, actions, as_games(state), strict=True)):
            draws.use(row)
            game.act(action)
            game.terminal = False
            assert without_copies(found) == without_copies(attributes(game)), (row, step)


# ------------------------------------------------------------------------------------- no list outgrows its slots


def test_long_play_fills_no_list_beyond_its_slots() -> None:
    _, most = played_games()
    assert most["f_bullets"] == BULLETS
    assert most["divers"] == DIVERS
    assert 15 < most["enemies"] <= ENEMIES


class FromTheLeft(Keys):
    """Keys by which every enemy comes from the left, so that none is refused for its row."""

    def uniform(self, lane: int, count: int) -> torch.Tensor:
        drawn = super().uniform(lane, count)
        return torch.where(torch.arange(count) == 0, 0.0, drawn) if lane == RULES else drawn


def test_thirty_enemies_at_once_equal_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    env, game, draws = Seaquest(sticky_action_prob=0.0), seaquest.Env(), ScriptedDraws()
    vars(game).update(difficulty(19), e_spawn_timer=0, random=draws)
    counts = []

    def spawn_and_count() -> None:
        seaquest.Env._spawn_enemy(game)
        counts.append(len(game.e_fish) + len(game.e_subs))

    monkeypatch.setattr(game, "_spawn_enemy", spawn_and_count)
    state = as_rows([attributes(game)])
    for step in range(1, 80):
        asked = FromTheLeft(*(getattr(keys(1, step), name) for name in ("seed", "env", "episode", "step")))
        draws.set_step(asked, RULES)
        game.act(NOOP)
        state, _, _ = env.step(state, torch.tensor([NOOP]), asked)
        assert without_copies(as_games(state)[0]) == without_copies(attributes(game))
    assert counts[:31] == [*range(1, 31), 30]
    assert max(counts) == ENEMIES


@functools.cache
def most_arrivals(level: int, moves: int, wait: int, spawn_timer: int, may_surface: bool) -> int:
    """Return how many enemies can come until one that has made so many `moves` is gone, over all ways to surface."""
    speeds, comes = difficulty(level), int(spawn_timer == 0)
    spawn_timer = speeds["e_spawn_speed"] if comes else spawn_timer
    moves, wait = (moves + 1, speeds["move_speed"]) if wait == 0 else (moves, wait - 1)
    if moves == 10:
        return comes
    # At the surface or under water. It is the ascent that makes the game harder, at most every other step.
    ascent = most_arrivals(min(level + may_surface, 19), moves, wait, spawn_timer - 1, False)
    return comes + max(ascent, most_arrivals(level, moves, wait, spawn_timer - 1, True))


def test_no_way_to_play_brings_more_enemies_than_slots() -> None:
    found = [most_arrivals(level, 0, difficulty(level)["move_speed"], 0, True) for level in range(20)]
    assert (found[0], found[19], max(found)) == (4, 30, ENEMIES)
