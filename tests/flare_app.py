"""A job for FLARE's simulator, and the site that runs in it: settings of the aggregator as JSON.

python flare_app.py OUT '{"trusted_counts": true}'
"""

import json
import sys
from pathlib import Path

import numpy as np

KEY = "numpy_key"  # under which FLARE's recipe for numpy keeps the one array that is the model
SITES, ROUNDS, STEPS = 4, 2, (1000, 1000, 1000, 10)


def site() -> None:
    """Send 3 and noise, from so many steps; the last site's first update has another shape."""
    import nvflare.client as flare

    flare.init()
    party = int(flare.get_site_name().removeprefix("site-")) - 1
    while flare.is_running():
        task = flare.receive()
        if task is None:
            return
        round = int(task.current_round or 0)
        noise = np.random.default_rng([party, round]).standard_normal(task.params[KEY].shape)
        update = 3 + 0.1 * noise
        if party == SITES - 1 and round == 0:
            update = update[:-1]
        meta = {"NUM_STEPS_CURRENT_ROUND": STEPS[party]}
        flare.send(flare.FLModel(params={KEY: update}, meta=meta))


def job(out: Path, settings: dict[str, object]) -> None:
    """Run it; the record goes to run.jsonl."""
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
    from nvflare.recipe import SimEnv

    from consilience.integrations.nvflare import ConsilienceAggregator

    recipe = NumpyFedAvgRecipe(
        name="asked-for",
        model=[0.0] * 5000,
        min_clients=SITES,
        num_rounds=ROUNDS,
        train_script=__file__,
        aggregator=ConsilienceAggregator(record=str(out / "run.jsonl"), **settings),
    )
    recipe.execute(SimEnv(num_clients=SITES, workspace_root=str(out / "work")))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        job(Path(sys.argv[1]), json.loads(sys.argv[2]))
    else:
        site()
