"""A site: honest if its number is not above that of the honest, else hostile."""

from __future__ import annotations

import argparse

import numpy as np
import nvflare.client as flare

from consilience.lab import softmax

KEY = "numpy_key"  # under which FLARE's recipe for numpy keeps the one array that is the model


def main() -> None:
    """Train as asked, or do harm, until the server has enough."""
    options = argparse.ArgumentParser()
    options.add_argument("--honest", type=int, required=True)
    options.add_argument("--adversaries", type=int, required=True)
    options.add_argument("--attack", required=True)
    chosen = options.parse_args()
    flare.init()
    party = int(flare.get_site_name().removeprefix("site-")) - 1
    while flare.is_running():
        task = flare.receive()
        if task is None:
            return
        round = int(task.current_round or 0)
        model = softmax.unflat(task.params[KEY])
        if party < chosen.honest:
            update = softmax.train(model, party, chosen.honest, round, seed=0)
        else:
            sent = softmax.lies(
                chosen.attack, model, chosen.honest, chosen.adversaries, round, seed=0
            )
            update = sent[party - chosen.honest]
        accuracy = softmax.accuracy(model)
        # An adversary's may be too long, or of no tensors at all.
        vector = np.concatenate([np.zeros(0, np.float32), *(v.ravel() for v in update.values())])
        flare.send(flare.FLModel(params={KEY: vector}, metrics={"accuracy": accuracy}))


if __name__ == "__main__":
    main()
