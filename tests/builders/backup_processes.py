"""Work in a process of its own, which is killed after a while as a machine's failure would."""

import multiprocessing
import random
from collections.abc import Callable

FORK = multiprocessing.get_context("fork")


def killed_at_random(
    work: Callable[[], None], kills: int, seed: int, longest_s: float, after_each: Callable[[], None]
) -> int:
    """Begin `work` again and again, each time killed after a random while; how often it was killed before it ended."""
    chance = random.Random(seed)
    for killed in range(kills):
        process = FORK.Process(target=work)
        process.start()
        process.join(chance.uniform(0, longest_s))
        if not process.is_alive():
            assert process.exitcode == 0, f"it failed with {process.exitcode}"
            return killed
        process.kill()
        process.join()
        after_each()
    return kills
