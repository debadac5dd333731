"""The strategy in Flower's own processes: SuperLink, SuperNodes, server and client apps."""

import datetime
import ipaddress
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import warm
from consilience.integrations.checkpoint import Checkpoint, latest
from consilience.record import Record, RecordedRound
from deployment import Deployment, deployed, wait

APP = Path(__file__).parent.parent / "flower_app"


def off(checkpoint: Checkpoint) -> float:
    """How far the model is from where honest parties alone would have taken it."""
    wanted = 3.0 * (1 - 0.5**checkpoint.round)
    return max(float(np.abs(values - wanted).max()) for values in checkpoint.model.values())


def rounds_kept(deployment: Deployment, folder: Path, round: int) -> None:
    wait(
        lambda: (folder / "checkpoint" / f"round-{round:06d}").exists(),
        f"no checkpoint of round {round}",
        deployment.log,
    )


@pytest.mark.integration
def test_a_federation_of_processes(tmp_path: Path):
    """One deployment for all: each of its processes takes seconds to start."""
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    authority(certificates)
    with (
        warm.commands() as commands,
        deployed(tmp_path, APP, certificates, commands) as flower,
    ):
        flower.superlink("--enable-supernode-auth")
        nodes = [registered(flower, certificates, party) for party in range(5)]
        stranger = node_key(certificates, 9)
        flower.supernode(9, f"--auth-supernode-private-key={stranger}")
        counts_tensors_and_a_spool(flower)
        a_round_that_does_not_count(flower)
        poison_garbage_a_killed_server_and_a_killed_node(flower, nodes)


def counts_tensors_and_a_spool(flower: Deployment) -> None:
    spool = flower.folder / "spool"
    found, round = ran(
        flower,
        "counts",
        ",,few,few-scaled,uncounted",
        trusted_counts=True,
        tensors="!bias",
        evidence=["weight"],
        spool=str(spool),
    )
    assert list(spool.iterdir()) == []
    assert float(np.abs(found.model["weight"] - 1.5).max()) < 0.6
    assert not found.model["bias"].any()
    assert round.weights["2"] == pytest.approx(round.weights["0"] / 10, rel=0.25)
    assert list(round.reasons) == ["3"]
    assert round.weights["3"] < 1e-5
    assert round.rejected == {"4": "its num-examples is -1, expected a positive number"}


def a_round_that_does_not_count(flower: Deployment) -> None:
    found, round = ran(flower, "require", ",,,mod-wrong-shape,", require={"suspects": 0.1})
    assert all(not values.any() for values in found.model.values())
    assert round.note is not None
    assert "1 of 5 parties are rejected" in round.note


def poison_garbage_a_killed_server_and_a_killed_node(flower: Deployment, node: list[str]) -> None:
    """Parties are known by the ids of their registered nodes."""
    folder = flower.folder / "kills"
    folder.mkdir()
    settings = {"parties": 4, "key": "", "folder": str(folder), "timeout": 90.0}
    run = flower.run(rounds=9, behaviour=",,,poison,nan", **settings)
    rounds_kept(flower, folder, 1)
    run.kill_server()  # in the second round
    run.stop()  # lest the nodes wait for the rest of what it was sending
    before = latest(folder / "checkpoint")
    assert before is not None
    assert off(before) < 0.6

    last = before.round + 2
    again = flower.run(rounds=last, behaviour=",,,poison,misshapen", **settings)
    rounds_kept(flower, folder, last - 1)
    flower.kill("node2")  # in the last round
    again.finished()
    log = flower.text("log", again.run_id, "loopback", "--show")

    found = latest(folder / "checkpoint")
    assert found is not None
    assert found.round == found.memory.rounds == last
    assert off(found) < 0.6
    record = Record.read(folder / "record.jsonl")
    assert [r.round for r in record] == list(range(1, last + 1))
    assert all({*r.parties, *r.rejected} <= set(node) for r in record)  # and no stranger
    assert "holds nan" in record[0].rejected[node[4]]
    assert "has shape (1, 40), expected (50, 40)" in record[-1].rejected[node[4]]
    assert node[2] in record[-1].rejected  # dead, whether the SuperLink or the clock said so
    assert all(node[3] in r.reasons and r.weights[node[3]] < 0.05 for r in record)
    assert found.memory.noise[node[3]] > 10 * found.memory.noise[node[0]]
    assert f"Going on after round {before.round} of {last}" in log
    assert f"party {node[3]} (weight" in log


def ran(
    flower: Deployment, name: str, behaviour: str, **strategy: Any
) -> tuple[Checkpoint, RecordedRound]:
    """The model and the record after a run of one round."""
    folder = flower.folder / name
    folder.mkdir()
    (folder / "strategy.json").write_text(json.dumps(strategy))
    flower.run(rounds=1, parties=5, behaviour=behaviour, folder=str(folder)).finished()
    found = latest(folder / "checkpoint")
    assert found is not None
    return found, Record.read(folder / "record.jsonl")[-1]


def registered(flower: Deployment, certificates: Path, party: int) -> str:
    """Start a node whose key the SuperLink knows; return the node's id."""
    key = node_key(certificates, party)
    found = flower.flwr("supernode", "register", f"{key}.pub", "loopback", "--format=json")
    flower.supernode(party, f"--auth-supernode-private-key={key}")
    return str(found["node-id"])


def authority(folder: Path) -> None:
    """A certificate authority, and this machine's certificate by it."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    local = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]

    def certificate(name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .issuer_name(ca_name)
            .subject_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    ca = certificate(ca_name, ca_key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    server = certificate(server_name, key.public_key()).add_extension(
        x509.SubjectAlternativeName(local), critical=False
    )
    for file, builder in (("ca.crt", ca), ("server.crt", server)):
        signed = builder.sign(ca_key, hashes.SHA256())
        (folder / file).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def node_key(folder: Path, party: int) -> Path:
    """A node's key pair, as ssh-keygen -t ecdsa -b 384 would make it."""
    key = ec.generate_private_key(ec.SECP384R1())
    path = folder / f"node{party}"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return path
