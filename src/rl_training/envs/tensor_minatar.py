"""Games of MinAtar (Young and Tian 2019) as tensor environments: Asterix, Breakout, Freeway and SpaceInvaders.

The rules are those of the package `minatar`, step by step, with the sticky actions and the rising difficulty of
`MinAtar/<Game>-v0` (minatar.py). Observations are (10, 10, channels) bool. Seaquest is in tensor_seaquest.py.
"""

import torch
from torch import Tensor

from rl_training.core.counters import Keys
from rl_training.core.types import State
from rl_training.envs.tensor_minatar_game import (
    DOWN,
    FIRE,
    FIRST,
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


class Breakout(Game):
    """A ball breaks three rows of bricks, one point each; it must not pass the paddle."""

    channels = 4  # paddle, ball, trail, brick
    useful_actions = (NOOP, LEFT, RIGHT)

    def _start(self, keys: Keys) -> State:
        on_right = keys.below(FIRST, 2)
        ball_x, ball_y = 9 * on_right, torch.full_like(on_right, 3)
        return {
            "ball_x": ball_x,
            "ball_y": ball_y,
            "direction": 2 + on_right,
            "paddle": torch.full_like(on_right, 4),
            "last_x": ball_x,
            "last_y": ball_y,
            "strike": torch.zeros_like(on_right, dtype=torch.bool),
            "bricks": self._wall(on_right),
        }

    def _wall(self, like: Tensor) -> Tensor:
        rows = torch.arange(SIZE, device=like.device)
        return ((rows >= 1) & (rows < 4))[None, :, None].expand(len(like), SIZE, SIZE).clone()

    def _play(self, state: State, action: Tensor, keys: Keys) -> RuleResult:
        paddle = moved(state["paddle"], action, LEFT, RIGHT)
        last_x, last_y, direction = state["ball_x"], state["ball_y"], state["direction"]
        # Directions: 0 left and up, 1 right and up, 2 right and down, 3 left and down.
        new_x = last_x + torch.where((direction == 1) | (direction == 2), 1, -1)
        new_y = last_y + torch.where(direction >= 2, 1, -1)
        at_side = (new_x < 0) | (new_x > SIZE - 1)
        new_x = new_x.clamp(0, SIZE - 1)
        direction = torch.where(at_side, direction ^ 1, direction)
        at_top = new_y < 0
        touched = one_cell(new_y, new_x) & state["bricks"]
        at_brick = touched.flatten(1).any(1)
        breaks = at_brick & ~state["strike"]
        bricks = state["bricks"] & ~(touched & breaks[:, None, None])
        at_bottom = (new_y == SIZE - 1) & ~at_brick
        is_empty = ~bricks.flatten(1).any(1) & at_bottom
        bricks = torch.where(is_empty[:, None, None], self._wall(paddle), bricks)
        straight = at_bottom & (last_x == paddle)
        aside = at_bottom & ~straight & (new_x == paddle)
        direction = torch.where(at_top | breaks | straight, 3 - direction, torch.where(aside, direction ^ 2, direction))
        new_y = torch.where(breaks | straight | aside, last_y, new_y.clamp(min=0))
        new = {
            "ball_x": new_x,
            "ball_y": new_y,
            "direction": direction,
            "paddle": paddle,
            "last_x": last_x,
            "last_y": last_y,
            "strike": at_brick,
            "bricks": bricks,
        }
        return new, breaks, at_bottom & ~straight & ~aside

    def observe(self, state: State) -> Tensor:
        bottom = torch.full_like(state["paddle"], SIZE - 1)
        cells = ((bottom, state["paddle"]), (state["ball_y"], state["ball_x"]), (state["last_y"], state["last_x"]))
        return torch.stack([*(one_cell(row, column) for row, column in cells), state["bricks"]], -1)


class Freeway(Game):
    """Cross eight lanes of cars; a point at the top. The game ends by its time alone, which is a truncation."""

    max_episode_steps: int | None = 2_501
    channels = 7  # chicken, car, five speeds
    useful_actions = (NOOP, UP, DOWN)
    _LANES, _REST = 8, 3

    def _start(self, keys: Keys) -> State:
        speed = self._speeds(keys, FIRST)
        number = keys.seed
        return {
            "chicken": torch.full_like(number, SIZE - 1),
            "rest": torch.full_like(number, self._REST),
            "car": torch.zeros_like(speed),
            "wait": speed.abs(),
            "speed": speed,
        }

    def _speeds(self, keys: Keys, lane: int) -> Tensor:
        """Return steps per cell of each car, (rows, 8), negative to the left."""
        drawn = keys.uniform(lane, 2 * self._LANES)
        size = 1 + (5 * drawn[:, : self._LANES]).long()
        return torch.where(drawn[:, self._LANES :] < 0.5, -size, size)

    def _play(self, state: State, action: Tensor, keys: Keys) -> RuleResult:
        moves = (state["rest"] == 0) & ((action == UP) | (action == DOWN))
        chicken = torch.where(moves, moved(state["chicken"], action, UP, DOWN), state["chicken"])
        rest = torch.where(moves, self._REST, state["rest"])
        won = chicken == 0
        speed = torch.where(won[:, None], self._speeds(keys, RULES), state["speed"])
        wait = torch.where(won[:, None], speed.abs(), state["wait"])
        chicken = torch.where(won, SIZE - 1, chicken)
        drives = wait == 0
        car = torch.where(drives, (state["car"] + speed.sign()) % SIZE, state["car"])
        lanes = torch.arange(1, self._LANES + 1, device=car.device)
        hit = ((lanes == chicken[:, None]) & ((state["car"] == 4) | (car == 4))).any(1)
        new = {
            "chicken": torch.where(hit, SIZE - 1, chicken),
            "rest": (rest - 1).clamp(min=0),
            "car": car,
            "wait": torch.where(drives, speed.abs(), wait - 1),
            "speed": speed,
        }
        return new, won, torch.zeros_like(won)

    def observe(self, state: State) -> Tensor:
        chicken = one_cell(state["chicken"], torch.full_like(state["chicken"], 4))
        places = torch.arange(SIZE, device=chicken.device)
        car, speed = state["car"], state["speed"]
        cars = car[..., None] == places  # (rows, lanes, columns)
        behind = ((car - speed.sign()) % SIZE)[..., None] == places
        trails = [behind & (speed.abs() == number)[..., None] for number in range(1, 6)]
        boards = [torch.nn.functional.pad(board, (0, 0, 1, 1)) for board in (cars, *trails)]  # lanes are rows 1 to 8
        return torch.stack([chicken, *boards], -1)


class Asterix(Game):
    """Collect gold, one point each, and avoid enemies; both come from the sides in eight rows, faster and faster."""

    channels = 4  # player, enemy, trail, gold
    useful_actions = (NOOP, LEFT, UP, RIGHT, DOWN)
    _SLOTS, _RAMP = 8, 100

    def _start(self, keys: Keys) -> State:
        number = keys.seed
        start = {"player_x": 5, "player_y": 5, "spawn_speed": 10, "spawn_timer": 10, "move_speed": 5, "move_timer": 5}
        slots = torch.zeros_like(number)[:, None].expand(-1, self._SLOTS)
        flags = {name: torch.zeros_like(slots, dtype=torch.bool) for name in ("present", "rightwards", "gold")}
        return {
            **{name: torch.full_like(number, value) for name, value in start.items()},
            "ramp_timer": torch.full_like(number, self._RAMP),
            "ramp_index": torch.zeros_like(number),
            "x": torch.zeros_like(slots),
            **flags,
        }

    def _play(self, state: State, action: Tensor, keys: Keys) -> RuleResult:
        new = self._spawned(state, keys)
        player_x = moved(state["player_x"], action, LEFT, RIGHT)
        player_y = moved(state["player_y"], action, UP, DOWN, 1, 8)
        in_row = torch.arange(1, self._SLOTS + 1, device=player_y.device) == player_y[:, None]
        present, x, gold = new["present"], new["x"], new["gold"]
        met = present & in_row & (x == player_x[:, None])
        rewards, terminated = (met & gold).sum(1), (met & ~gold).any(1)
        present = present & ~(met & gold)
        moves = (state["move_timer"] == 0)[:, None] & present
        x = torch.where(moves, x + torch.where(new["rightwards"], 1, -1), x)
        present = present & (x >= 0) & (x < SIZE)
        met = moves & present & in_row & (x == player_x[:, None])
        rewards, terminated = rewards + (met & gold).sum(1), terminated | (met & ~gold).any(1)
        present = present & ~(met & gold)
        move_timer = torch.where(state["move_timer"] == 0, state["move_speed"], state["move_timer"]) - 1
        places = {"player_x": player_x, "player_y": player_y, "present": present, "x": x, "move_timer": move_timer}
        timers = {"spawn_timer": new["spawn_timer"] - 1}
        return new | places | timers | self._ramped(state), rewards, terminated

    def _spawned(self, state: State, keys: Keys) -> State:
        """Return the state after a new object, if its time has come and a row is free."""
        drawn = keys.uniform(RULES, 3)
        due, free = state["spawn_timer"] == 0, ~state["present"]
        chosen = (drawn[:, 2] * free.sum(1)).long()  # the number of a free row
        here = free & (free.long().cumsum(1) - 1 == chosen[:, None]) & due[:, None]
        rightwards, gold = ((drawn[:, column] < share)[:, None] for column, share in ((0, 1 / 2), (1, 1 / 3)))
        return {
            **state,
            "present": state["present"] | here,
            "rightwards": torch.where(here, rightwards, state["rightwards"]),
            "gold": torch.where(here, gold, state["gold"]),
            "x": torch.where(here, torch.where(rightwards, 0, SIZE - 1), state["x"]),
            "spawn_timer": torch.where(due, state["spawn_speed"], state["spawn_timer"]),
        }

    def _ramped(self, state: State) -> State:
        spawn_speed, move_speed, index = state["spawn_speed"], state["move_speed"], state["ramp_index"]
        can = ((spawn_speed > 1) | (move_speed > 1)) & self._ramping
        now = can & (state["ramp_timer"] < 0)
        return {
            "move_speed": move_speed - (now & (move_speed > 1) & (index % 2 == 1)).long(),
            "spawn_speed": spawn_speed - (now & (spawn_speed > 1)).long(),
            "ramp_index": index + now.long(),
            "ramp_timer": torch.where(now, self._RAMP, state["ramp_timer"] - (can & ~now).long()),
        }

    def observe(self, state: State) -> Tensor:
        places = torch.arange(SIZE, device=state["x"].device)
        here = (state["x"][..., None] == places) & state["present"][..., None]  # (rows, slots, columns)
        back = state["x"] - torch.where(state["rightwards"], 1, -1)
        trail = (back[..., None] == places) & state["present"][..., None]
        gold = state["gold"][..., None]
        enemy, trail, gold = (torch.nn.functional.pad(x, (0, 0, 1, 1)) for x in (here & ~gold, trail, here & gold))
        return torch.stack((one_cell(state["player_y"], state["player_x"]), enemy, trail, gold), -1)


class SpaceInvaders(Game):
    """Shoot the aliens, one point each, before they or their bullets reach the cannon."""

    channels = 6  # cannon, alien, alien moving left, alien moving right, bullet of the cannon, bullet of an alien
    useful_actions = (NOOP, LEFT, RIGHT, FIRE)
    _COOL_DOWN, _MOVE, _SHOT, _FASTEST = 5, 12, 10, 6

    def _start(self, keys: Keys) -> State:
        number = keys.seed
        start = {"cannon": 5, "direction": -1, "move_interval": self._MOVE, "move_timer": self._MOVE}
        more = {"shot_timer": self._SHOT, "cool_down": 0, "ramp_index": 0}
        empty = torch.zeros((len(number), SIZE, SIZE), dtype=torch.bool, device=number.device)
        return {
            **{name: torch.full_like(number, value) for name, value in (start | more).items()},
            "bullets": empty,
            "alien_bullets": empty.clone(),
            "aliens": self._wave(number),
        }

    def _wave(self, like: Tensor) -> Tensor:
        places = torch.arange(SIZE, device=like.device)
        wave = (places < 4)[:, None] & ((places >= 2) & (places < 8))
        return wave.expand(len(like), SIZE, SIZE).clone()

    def _play(self, state: State, action: Tensor, keys: Keys) -> RuleResult:
        cannon = moved(state["cannon"], action, LEFT, RIGHT)
        at_cannon = one_cell(torch.full_like(cannon, SIZE - 1), cannon)
        fires = (action == FIRE) & (state["cool_down"] == 0)
        cool_down = torch.where(fires, self._COOL_DOWN, state["cool_down"])
        bullets = _shifted(state["bullets"] | (at_cannon & fires[:, None, None]), -1)
        alien_bullets = _shifted(state["alien_bullets"], 1)
        aliens, direction, terminated = state["aliens"], state["direction"], meets(alien_bullets, at_cannon)
        terminated = terminated | meets(aliens, at_cannon)
        moves = state["move_timer"] == 0
        count = aliens.flatten(1).sum(1)
        move_timer = torch.where(moves, torch.minimum(count, state["move_interval"]), state["move_timer"])
        at_left, at_right = aliens[:, :, 0].any(1) & (direction < 0), aliens[:, :, -1].any(1) & (direction > 0)
        turns = moves & (at_left | at_right)
        terminated = terminated | (turns & aliens[:, -1].any(1))
        aside = torch.where((direction < 0)[:, None, None], aliens.roll(-1, 2), aliens.roll(1, 2))
        aliens = torch.where(moves[:, None, None], torch.where(turns[:, None, None], aliens.roll(1, 1), aside), aliens)
        direction = torch.where(turns, -direction, direction)
        terminated = terminated | (moves & meets(aliens, at_cannon))
        shoots = state["shot_timer"] == 0
        alien_bullets = alien_bullets | (self._nearest(aliens, cannon) & shoots[:, None, None])
        killed = aliens & bullets
        aliens, bullets = aliens & ~killed, bullets & ~killed
        cleared = ~aliens.flatten(1).any(1)
        faster = cleared & (state["move_interval"] > self._FASTEST) & self._ramping
        new = {
            "cannon": cannon,
            "direction": direction,
            "move_interval": state["move_interval"] - faster.long(),
            "move_timer": move_timer - 1,
            "shot_timer": torch.where(shoots, self._SHOT, state["shot_timer"]) - 1,
            "cool_down": (cool_down - 1).clamp(min=0),
            "ramp_index": state["ramp_index"] + faster.long(),
            "bullets": bullets,
            "alien_bullets": alien_bullets,
            "aliens": torch.where(cleared[:, None, None], self._wave(cannon), aliens),
        }
        return new, killed.flatten(1).sum(1), terminated

    def _nearest(self, aliens: Tensor, cannon: Tensor) -> Tensor:
        """Return the cell of the lowest alien in the column nearest to the cannon; of two, the left one."""
        places = torch.arange(SIZE, device=cannon.device)
        distance = (places - cannon[:, None]).abs() * SIZE + places
        column = torch.where(aliens.any(1), distance, SIZE * SIZE * 2).argmin(1)
        in_column = aliens & (places == column[:, None, None])
        row = torch.where(in_column, places[:, None], -1).flatten(1).amax(1)
        return one_cell(row, column)

    def observe(self, state: State) -> Tensor:
        aliens, left = state["aliens"], (state["direction"] < 0)[:, None, None]
        cannon = one_cell(torch.full_like(state["cannon"], SIZE - 1), state["cannon"])
        return torch.stack(
            (cannon, aliens, aliens & left, aliens & ~left, state["bullets"], state["alien_bullets"]), -1
        )


def _shifted(board: Tensor, rows: int) -> Tensor:
    """Move a board down by one row, or up; nothing comes in."""
    padding = (0, 0, 1, 0) if rows > 0 else (0, 0, 0, 1)
    kept = board[:, :-1] if rows > 0 else board[:, 1:]
    return torch.nn.functional.pad(kept, padding)
