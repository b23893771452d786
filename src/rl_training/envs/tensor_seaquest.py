"""MinAtar's Seaquest as a tensor environment; tensor_minatar.py has the other games.

The package keeps bullets, divers and enemies in lists. Here each kind has a fixed number of slots, the newest object in
the first one: whoever comes moves the others on by a slot, and whoever leaves, leaves a hole. So the order of a list is
that of the slots from the last to the first. `heading` is 1 to the right, -1 to the left and 0 in an empty slot. The
bullets of enemies are boards instead, one per direction: equal ones do the same, and nothing stops one.
"""

import torch
from torch import Tensor

from rl_training.core.counters import Keys
from rl_training.core.types import State
from rl_training.envs.tensor_minatar_game import (
    DOWN,
    FIRE,
    LEFT,
    NOOP,
    RIGHT,
    RULES,
    SIZE,
    UP,
    Game,
    RuleResult,
    meets,
    moved,
    one_cell,
)

DIVER_DRAWS = RULES + 1  # a lane of random numbers

# No list is longer, counted in the middle of a step, when objects have come and none has left.
# A bullet flies one cell a step, at most nine steps, and the next is fired five steps later at the earliest.
BULLETS = 2
# A diver moves every 6 steps and is gone with its tenth move, in its 60th step; one comes every 30 steps.
DIVERS = 2
# An enemy is gone with its tenth move too. At the greatest difficulty it moves every 3 steps, and one comes in each
# step: 30. At first it moves every 6 steps, and one comes in 20. With each ascent, at most every other step, these
# numbers fall. No sequence of ascents brings more than 30 in the lifetime of an enemy, which a test proves by search.
ENEMIES = 30

_OXYGEN, _CREW, _COOL_DOWN, _SHOT = 200, 6, 5, 10
_SPAWN_SPEED, _MOVE_SPEED, _FASTEST_MOVE = 20, 5, 2
_DIVER_SPAWN, _DIVER_MOVE = 30, 5


class Seaquest(Game):
    """Shoot fish and submarines, one point each; take divers to the surface before the oxygen is used up.

    An ascent with six divers pays up to nine points for oxygen; as in the package, it leaves -1 divers aboard.
    """

    channels = 10  # front, back, bullet, trail, bullet of an enemy, fish, enemy submarine, oxygen, divers aboard, diver
    useful_actions = (NOOP, LEFT, UP, RIGHT, DOWN, FIRE)

    def _start(self, keys: Keys) -> State:
        number = keys.seed
        start = {"player_x": 5, "player_y": 0, "facing": -1, "oxygen": _OXYGEN, "aboard": 0, "shot_timer": 0}
        speeds = {"spawn_speed": _SPAWN_SPEED, "spawn_timer": _SPAWN_SPEED, "move_speed": _MOVE_SPEED, "ramp_index": 0}
        numbers = start | speeds | {"diver_timer": _DIVER_SPAWN}
        board = torch.zeros((len(number), SIZE, SIZE), dtype=torch.bool, device=number.device)
        return {
            **{name: torch.full_like(number, value) for name, value in numbers.items()},
            "surfaced": torch.ones_like(number, dtype=torch.bool),
            "shots_left": board,
            "shots_right": board.clone(),
            **_named("bullet", _slots(number, BULLETS, "x", "y", "heading")),
            **_named("diver", _slots(number, DIVERS, "x", "y", "heading", "wait")),
            **_named("enemy", _slots(number, ENEMIES, "x", "y", "heading", "wait", "shot", "is_sub")),
        }

    def _play(self, state: State, action: Tensor, keys: Keys) -> RuleResult:
        enemies, divers = self._enemies(state, keys), self._divers(state, keys)
        fires = (action == FIRE) & (state["shot_timer"] == 0)
        new_bullet = {"x": state["player_x"], "y": state["player_y"], "heading": state["facing"]}
        bullets = _with(_objects(state, "bullet"), new_bullet, fires)
        player_x = moved(state["player_x"], action, LEFT, RIGHT)
        player_y = moved(state["player_y"], action, UP, DOWN, 0, SIZE - 2)
        player = SIZE * player_y + player_x
        bullets, enemies, kills = _struck(_advanced(bullets), enemies)
        divers, aboard = self._rescued(divers, player, state["aboard"])
        # The package moves submarines, then their bullets, then fish. None of these changes another's result.
        swum = self._swum(enemies, state["move_speed"])
        terminated = _at(enemies, player) | _at(swum, player) | (state["oxygen"] <= 0)
        # A submarine that is hit as it moves still shoots.
        shots, shot = self._shots(state, enemies | {"x": swum["x"]}, one_cell(player_y, player_x))
        # An enemy that is at a bullet here has just moved there, since the bullets at others are gone. Two never move
        # to one cell at once: they would have come in the same step. (The move speed changes only while an enemy has
        # moved on before the next one comes.)
        bullets, swum, more_kills = _struck(bullets, swum)
        breath, bonus, stranded = self._breathed(state, player_y, aboard)
        new = {
            "player_x": player_x,
            "player_y": player_y,
            "facing": torch.where(action == RIGHT, 1, torch.where(action == LEFT, -1, state["facing"])),
            **self._timers(state, fires),
            **shots,
            **breath,
            **_named("bullet", bullets),
            **_named("diver", divers),
            **_named("enemy", swum),
        }
        return new, kills + more_kills + bonus, terminated | shot | stranded

    def _enemies(self, state: State, keys: Keys) -> State:
        """Return the enemies with a new one, if its time has come and none in its row heads the other way."""
        enemies, drawn = _objects(state, "enemy"), keys.uniform(RULES, 3)
        rightwards, y = drawn[:, 0] < 1 / 2, _row(drawn[:, 2])
        heading = torch.where(rightwards, 1, -1)
        against = (enemies["y"] == y[:, None]) & (enemies["heading"] == -heading[:, None])
        new = {
            "x": torch.where(rightwards, 0, SIZE - 1),
            "y": y,
            "heading": heading,
            "wait": state["move_speed"],
            "shot": torch.full_like(y, _SHOT),
            "is_sub": drawn[:, 1] < 1 / 3,
        }
        return _with(enemies, new, (state["spawn_timer"] == 0) & ~against.any(1))

    def _divers(self, state: State, keys: Keys) -> State:
        """Return the divers with a new one, if its time has come."""
        drawn = keys.uniform(DIVER_DRAWS, 2)
        rightwards, y = drawn[:, 0] < 1 / 2, _row(drawn[:, 1])
        places = {"x": torch.where(rightwards, 0, SIZE - 1), "y": y, "heading": torch.where(rightwards, 1, -1)}
        new = places | {"wait": torch.full_like(y, _DIVER_MOVE)}
        return _with(_objects(state, "diver"), new, state["diver_timer"] == 0)

    def _rescued(self, divers: State, player: Tensor, aboard: Tensor) -> tuple[State, Tensor]:
        """Move the divers and take those at the player aboard, before or after their move, while there is room."""
        slots = []
        for slot in range(DIVERS):  # the newest first: one of two may take the last place
            diver = {name: value[:, slot, None] for name, value in divers.items()}
            taken = _at(diver, player) & (aboard < _CREW)
            aboard = aboard + taken.long()
            diver = _without(diver, taken[:, None])
            moves = diver["wait"] == 0
            wait = torch.where(moves, _DIVER_MOVE, diver["wait"] - 1)
            diver = _advanced(diver | {"wait": wait}, moves)
            taken = moves[:, 0] & _at(diver, player) & (aboard < _CREW)
            aboard = aboard + taken.long()
            slots.append(_without(diver, taken[:, None]))
        return {name: torch.cat([slot[name] for slot in slots], 1) for name in divers}, aboard

    def _swum(self, enemies: State, move_speed: Tensor) -> State:
        """Return the enemies after their move, if its time has come, and with the timers after this step."""
        moves = enemies["wait"] == 0
        wait = torch.where(moves, move_speed[:, None], enemies["wait"] - 1)
        shot = torch.where(enemies["shot"] == 0, _SHOT, enemies["shot"] - 1)
        return _advanced(enemies | {"wait": wait, "shot": shot}, moves)

    def _shots(self, state: State, enemies: State, at_player: Tensor) -> tuple[State, Tensor]:
        """Fire and move the bullets of submarines; return also whether one hit the player, before or after its move."""
        shoots, heading = enemies["is_sub"] & (enemies["shot"] == 0), enemies["heading"]
        left = state["shots_left"] | _board(enemies, shoots & (heading < 0))
        right = state["shots_right"] | _board(enemies, shoots & (heading > 0))
        hit = meets(left | right, at_player)
        left = torch.nn.functional.pad(left[:, :, 1:], (0, 1))
        right = torch.nn.functional.pad(right[:, :, :-1], (1, 0))
        return {"shots_left": left, "shots_right": right}, hit | meets(left | right, at_player)

    def _timers(self, state: State, fires: Tensor) -> State:
        spawn, diver, shot = state["spawn_timer"], state["diver_timer"], state["shot_timer"]
        return {
            "spawn_timer": torch.where(spawn == 0, state["spawn_speed"], spawn) - 1,
            "diver_timer": torch.where(diver == 0, _DIVER_SPAWN, diver) - 1,
            "shot_timer": (torch.where(fires, _COOL_DOWN, shot) - 1).clamp(min=0),
        }

    def _breathed(self, state: State, player_y: Tensor, aboard: Tensor) -> tuple[State, Tensor, Tensor]:
        """Use oxygen, or ascend to the surface; return also the points for it, and whether no diver was aboard."""
        below = player_y > 0
        ascends = ~below & ~state["surfaced"]
        stranded, lands = ascends & (aboard == 0), ascends & (aboard != 0)
        full = lands & (aboard == _CREW)
        oxygen = state["oxygen"] - below.long()
        spawn_speed, move_speed, index = state["spawn_speed"], state["move_speed"], state["ramp_index"]
        harder = lands & ((spawn_speed > 1) | (move_speed > _FASTEST_MOVE)) & self._ramping
        breath = {
            "oxygen": torch.where(lands, _OXYGEN, oxygen),
            "aboard": torch.where(full, 0, aboard) - lands.long(),
            "surfaced": ~below & (state["surfaced"] | lands),
            "move_speed": move_speed - (harder & (move_speed > _FASTEST_MOVE) & (index % 2 == 1)).long(),
            "spawn_speed": spawn_speed - (harder & (spawn_speed > 1)).long(),
            "ramp_index": index + harder.long(),
        }
        return breath, torch.where(full, oxygen * SIZE // _OXYGEN, 0), stranded

    def observe(self, state: State) -> Tensor:
        bullets, divers, enemies = (_objects(state, kind) for kind in ("bullet", "diver", "enemy"))
        swimmers = {name: torch.cat((enemies[name], divers[name]), 1) for name in ("x", "y", "heading")}
        trails = swimmers | {"x": swimmers["x"] - swimmers["heading"]}
        is_sub = enemies["is_sub"]
        places = torch.arange(SIZE, device=is_sub.device)
        bottom = (places == SIZE - 1)[:, None]
        oxygen = state["oxygen"].clamp(min=0) * SIZE // _OXYGEN
        gauge = (places >= SIZE - 1 - state["aboard"][:, None]) & (places < SIZE - 1)
        boards = (
            one_cell(state["player_y"], state["player_x"]),
            one_cell(state["player_y"], state["player_x"] - state["facing"]),
            _board(bullets),
            _board(trails),
            state["shots_left"] | state["shots_right"],
            _board(enemies, ~is_sub),
            _board(enemies, is_sub),
            bottom & (places < oxygen[:, None])[:, None],
            bottom & gauge[:, None],
            _board(divers),
        )
        return torch.stack(boards, -1)


def _slots(like: Tensor, count: int, *names: str) -> State:
    empty = torch.zeros((len(like), count), dtype=torch.int64, device=like.device)
    return {name: torch.zeros_like(empty, dtype=torch.bool if name == "is_sub" else None) for name in names}


def _objects(state: State, kind: str) -> State:
    """Return the slots of a kind, (rows, slots) each."""
    start = f"{kind}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def _named(kind: str, objects: State) -> State:
    return {f"{kind}.{name}": value for name, value in objects.items()}


def _row(uniform: Tensor) -> Tensor:
    """Return a row that objects come in: 1 to 8."""
    return 1 + ((SIZE - 2) * uniform).long()


def _with(objects: State, new: State, comes: Tensor) -> State:
    """Return the objects with another one in the first slot of the rows in which it comes."""
    return {
        name: torch.where(comes[:, None], torch.cat((new[name][:, None], value[:, :-1]), 1), value)
        for name, value in objects.items()
    }


def _without(objects: State, gone: Tensor) -> State:
    return objects | {"heading": torch.where(gone, 0, objects["heading"])}


def _advanced(objects: State, moves: Tensor | bool = True) -> State:
    """Move objects by a cell; those that leave the board are gone."""
    x = objects["x"] + objects["heading"] * moves
    return _without(objects | {"x": x}, (x < 0) | (x >= SIZE))


def _at(objects: State, place: Tensor) -> Tensor:
    """Return whether any object is at the place of its row, (rows,)."""
    return ((objects["heading"] != 0) & (_place(objects) == place[:, None])).any(1)


def _place(objects: State) -> Tensor:
    """Return the number of the cell of each object that is on the board."""
    return SIZE * objects["y"] + objects["x"]


def _board(objects: State, which: Tensor | None = None) -> Tensor:
    """Return the cells of the objects, or of those that `which` selects, (rows, 10, 10); none for a place outside."""
    shown = (objects["heading"] != 0) & (objects["x"] >= 0) & (objects["x"] < SIZE)
    shown = shown if which is None else shown & which
    cells = torch.where(shown, _place(objects), SIZE * SIZE)  # what is not shown has a cell of its own, cut off below
    board = torch.zeros((len(cells), SIZE * SIZE + 1), dtype=torch.bool, device=cells.device)
    return board.scatter(1, cells, True)[:, :-1].reshape(-1, SIZE, SIZE)


def _struck(bullets: State, enemies: State) -> tuple[State, State, Tensor]:
    """Remove each bullet that is at an enemy, and the enemy: a fish before a submarine, the oldest first."""
    present = (bullets["heading"] != 0)[:, :, None] & (enemies["heading"] != 0)[:, None]
    met = present & (_place(bullets)[:, :, None] == _place(enemies)[:, None])  # (rows, bullets, enemies)
    rank = torch.arange(1, ENEMIES + 1, device=met.device) + torch.where(enemies["is_sub"], 0, ENEMIES)
    first = torch.where(met, rank[:, None], 0).amax(2, keepdim=True)
    killed = met & (rank[:, None] == first)
    return _without(bullets, met.any(2)), _without(enemies, killed.any(1)), met.any(2).sum(1)
