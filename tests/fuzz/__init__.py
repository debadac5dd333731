"""A fuzzer: made-up input of every kind, some of it hostile, and an oracle that knows who is sound.

    PYTHONPATH=tests python -m fuzz --seconds 60 --seed 7 --kinds updates,npz
    PYTHONPATH=tests python -m fuzz --only npz:7:1234

A kind is a module with ``case(random, folder)``: it makes one case from the random numbers, may
write to the folder, and raises whatever is wrong. A case is made from its kind, seed and number
alone, so those three words repeat it.
"""

# Where the kinds are. Updates come thrice: they are the largest of the doors.
KINDS = {
    "updates": "fuzz.updates",
    "safetensors": "fuzz.safetensors_files",
    "npz": "fuzz.npz_files",
    "adapters": "fuzz.adapters",
    "memory": "fuzz.memories",
    "record": "fuzz.records",
    "checkpoint": "fuzz.checkpoints",
    "csv": "fuzz.tables",
    "flower": "fuzz.replies",
}
TURNS = (
    *("updates", "safetensors", "npz"),
    *("updates", "memory", "flower", "record"),
    *("updates", "csv", "checkpoint", "adapters"),
)
