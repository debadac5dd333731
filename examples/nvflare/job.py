"""MNIST with NVIDIA FLARE in its simulator, some sites hostile, and nobody told who."""

from __future__ import annotations

import argparse
from pathlib import Path

from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from consilience.integrations.nvflare import ConsilienceAggregator
from consilience.lab import softmax


def main() -> None:
    """Run the federation, and leave a record of it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--honest", type=int, default=4)
    options.add_argument("--adversaries", type=int, default=2)
    options.add_argument("--attack", default="alie-1.5", help="of consilience.lab.attacks.SUITE")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--out", type=Path, default=Path("nvflare-run"))
    chosen = options.parse_args()
    parties = chosen.honest + chosen.adversaries
    out = chosen.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    recipe = NumpyFedAvgRecipe(
        name="mnist-under-attack",
        model=softmax.flat(softmax.initial()).tolist(),
        min_clients=parties,
        num_rounds=chosen.rounds,
        train_script=str(Path(__file__).parent / "client.py"),
        train_args=f"--honest {chosen.honest} --adversaries {chosen.adversaries} "
        f"--attack {chosen.attack}",
        aggregator=ConsilienceAggregator(
            record=str(out / "run.jsonl"), memory=str(out / "memory.npz")
        ),
    )
    recipe.execute(SimEnv(num_clients=parties, workspace_root=str(out / "work")))
    print(f"The record: {out / 'run.jsonl'}")


if __name__ == "__main__":
    main()
