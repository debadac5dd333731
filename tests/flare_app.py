"""Jobs for FLARE's simulator, and the site that runs in them: settings of the aggregator as JSON.

python flare_app.py fedavg OUT '{"trusted_counts": true}'
python flare_app.py swarm OUT '{}'
"""

import json
import sys
from pathlib import Path

import numpy as np

KEY = "numpy_key"  # under which FLARE's recipe for numpy keeps the one array that is the model
SITES, ROUNDS, STEPS, SIZE = 4, 2, (1000, 1000, 1000, 10, 1000), 5000


def site() -> None:
    """Send 3 and noise, from so many steps; the fourth site's first update has another shape."""
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


def fedavg(out: Path, settings: dict[str, object]) -> None:
    """The server aggregates; a fifth site attacks by a filter; the record goes to run.jsonl."""
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
    from nvflare.recipe import SimEnv

    from consilience.integrations.nvflare import ConsilienceAggregator
    from consilience.lab.nvflare import AttackFilter

    recipe = NumpyFedAvgRecipe(
        name="asked-for",
        model=[0.0] * SIZE,
        min_clients=SITES + 1,
        num_rounds=ROUNDS,
        train_script=__file__,
        aggregator=ConsilienceAggregator(record=str(out / "run.jsonl"), **settings),
    )
    hostile = AttackFilter("ipm-10", clients=[f"site-{SITES + 1}"])
    recipe.add_client_output_filter(hostile, tasks=["train"])
    recipe.execute(SimEnv(num_clients=SITES + 1, workspace_root=str(out / "work")))


def swarm(out: Path, settings: dict[str, object]) -> None:
    """In each round another site may aggregate; all of them have this machine's run.jsonl."""
    from nvflare.app_common.ccwf.ccwf_job import CCWFJob, SwarmClientConfig, SwarmServerConfig
    from nvflare.app_common.ccwf.comps.np_file_model_persistor import NPFileModelPersistor
    from nvflare.app_common.ccwf.comps.simple_model_shareable_generator import (
        SimpleModelShareableGenerator,
    )
    from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

    from consilience.integrations.nvflare import ConsilienceAggregator

    start = str(out / "start.npy")
    np.save(start, np.zeros(SIZE, np.float32))
    job = CCWFJob(name="swarm", min_clients=SITES)
    site = SwarmClientConfig(
        executor=ScriptRunner(script=__file__, framework=FrameworkType.NUMPY),
        persistor=NPFileModelPersistor(source_ckpt_file_full_name=start),
        shareable_generator=SimpleModelShareableGenerator(),
        aggregator=ConsilienceAggregator(record=str(out / "run.jsonl"), **settings),
        min_responses_required=SITES,
    )
    job.add_swarm(SwarmServerConfig(num_rounds=ROUNDS), site)
    job.simulator_run(str(out / "work"), n_clients=SITES, threads=SITES)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        jobs = {"fedavg": fedavg, "swarm": swarm}
        out = Path(sys.argv[2]).absolute()
        jobs[sys.argv[1]](out, {"spool": str(out / "spool"), **json.loads(sys.argv[3])})
    else:
        site()
